#!/bin/sh
# Run one of the programs of this image, with the options that HBase needs on Java 17.
set -eu

home=${HBASE_RUN_HOME:-/opt/hbase}
program=${1:-server}

java_with() {
  conf=$1
  heap=$2
  shift 2
  exec java "-Xmx$heap" -XX:+UseSerialGC -Dzookeeper.admin.enableServer=false -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true \
    --add-opens=java.base/java.nio=ALL-UNNAMED \
    --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
    --add-opens=java.base/java.lang=ALL-UNNAMED \
    --add-opens=java.base/java.util=ALL-UNNAMED \
    --add-opens=java.base/java.util.concurrent=ALL-UNNAMED \
    --add-opens=java.base/java.lang.reflect=ALL-UNNAMED \
    --add-opens=java.base/java.io=ALL-UNNAMED \
    --add-opens=java.base/java.net=ALL-UNNAMED \
    --add-opens=java.base/jdk.internal.ref=ALL-UNNAMED \
    --add-exports=java.base/jdk.internal.misc=ALL-UNNAMED \
    -cp "$home/$conf:$home/classes:$home/lib/*" "$@"
}

# The volume outlives the image, and Docker fills a volume from an image only once.
if [ "$program" = server ] && [ -d "${TMS_JARS:-/jars}" ]; then
  cp "$home"/../tms/tms-coprocessor-*.jar "${TMS_JARS:-/jars}/"
fi

case $program in
  server) java_with server "${HBASE_HEAP:-768m}" org.apache.hadoop.hbase.master.HMaster start ;;
  thrift) java_with gateway "${HBASE_HEAP:-256m}" \
    org.apache.hadoop.hbase.thrift2.ThriftServer start -p 9090 --infoport -1 ;;
  thrift1) java_with gateway "${HBASE_HEAP:-256m}" \
    org.apache.hadoop.hbase.thrift.ThriftServer start -p 9091 --infoport -1 ;;
  zookeeper) java_with server "${HBASE_HEAP:-128m}" \
    org.apache.zookeeper.server.ZooKeeperServerMain 2181 /data/zookeeper ;;
  admin) java_with gateway "${HBASE_HEAP:-256m}" Admin ;;
  *)
    echo "error: no program $program; give server, thrift, thrift1, zookeeper or admin" >&2
    exit 64
    ;;
esac
