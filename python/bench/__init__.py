"""The benchmarks behind docs/benchmarks.md: `make bench`, or `python -m bench` in `python/`.

Each file answers one question; `report` owns how runs are interleaved and shown, `targets` the
measured systems, `threads` load and clients of one process. A number means something only beside
the number that it is compared with in the same run: `report` explains why. `peers_adapter` lets the
harness that runs Kafka, Redis, NATS and RabbitMQ run TMS too.
"""
