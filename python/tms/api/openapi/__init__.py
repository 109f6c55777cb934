"""The OpenAPI document, a file for each part of the service."""
