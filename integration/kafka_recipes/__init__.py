"""Recipes of docs/kafka-recipes.md: programs that are written for Kafka, unmodified, on topics of
TMS.

Tests take a running service and run the commands and files that the page shows.
"""
