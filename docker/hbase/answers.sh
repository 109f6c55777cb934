#!/bin/bash
# Whether HBase answers through the Thrift 2 server of this container: `listNamespaces`, which takes a
# master that is up, in Thrift's binary protocol byte by byte. That the port is open says less.
set -euo pipefail

name=listNamespaces
message=$(printf '%s' "$name" | od -An -tx1 | tr -d ' \n')
message=$(printf '%08x' "${#name}")${message}00000001 # length, name, number of the call

exec 3<>"/dev/tcp/127.0.0.1/${1:-9090}"
printf "$(printf '%s' "80010001${message}00" | sed 's/../\\x&/g')" >&3
# The same as a reply (2), with its field 0, the result: an error would be field 1.
test "$(head -c 29 <&3 | od -An -tx1 | tr -d ' \n')" = "80010002${message}0f0000"
