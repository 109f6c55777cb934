"""The benchmarks behind docs/benchmarks.md: `make bench`, or `python -m bench` in `python/`.

Each file is one question; `report` owns how runs are interleaved and shown, `targets` what is
measured. A number is worth something only beside the number it is compared with in the same run:
see `report`. `peers_adapter` lets the harness that runs Kafka, Redis, NATS and RabbitMQ run TMS
too.
"""
