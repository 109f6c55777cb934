"""Spark 3.5 through the HBase connector, while no service runs: `python -m … TASK` in an
environment with pyspark 3.5."""

import json
import sys
from pathlib import Path

from integration.cluster.runtime import resolve_connector
from integration.soak.readers.spark import rows_of
from integration.soak.readers.writing import Place, write


def main() -> None:
    """Write one reading of each existing topic."""
    import tms.spark
    from tms.errors import TopicNotFound

    task = json.loads(sys.argv[1])
    place = Place(Path(task["directory"]), task["url"], task["topics"], task["seed"])
    jars = ",".join(map(str, resolve_connector().glob("*.jar")))
    options = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.jars": jars}
    spark = tms.spark.session("local[2]", "soak", zookeeper=task["zookeeper"], **options)
    try:
        for topic, of in place.topics.items():
            try:
                found = tms.spark.read(spark, topic, task["data"], headers=True, message_id=True)
            except TopicNotFound:
                if not of.get("dead"):
                    raise
                continue
            write(place, "spark connector", topic, rows_of(found), ordered=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
