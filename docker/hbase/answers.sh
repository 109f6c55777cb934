#!/bin/bash
# Check that HBase answers through the Thrift 2 server of this container. The script sends
# `listNamespaces`, which needs a running master, in Thrift's binary protocol byte by byte. An open port
# alone does not prove that.
set -euo pipefail

name=listNamespaces
message=$(printf '%s' "$name" | od -An -tx1 | tr -d ' \n')
message=$(printf '%08x' "${#name}")${message}00000001 # length, name, number of the call

exec 3<>"/dev/tcp/127.0.0.1/${1:-9090}"
printf "$(printf '%s' "80010001${message}00" | sed 's/../\\x&/g')" >&3
# The reply (type 2) to this call, with field 0, the result; an error would be field 1.
test "$(head -c 29 <&3 | od -An -tx1 | tr -d ' \n')" = "80010002${message}0f0000"
