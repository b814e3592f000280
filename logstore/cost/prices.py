"""The prices, all in this one file: list prices in US dollars, region us-east-1, without volume discounts and taxes.

Taken from aws.amazon.com/s3/pricing as it was in November 2026; when they change, change them here. Express One Zone
charges a price for each request and, beyond what the request carries free, one for each GB of it. Traffic within the
region is free.
"""

from __future__ import annotations

from dataclasses import dataclass

AS_OF = "2026-11"
GB = 1e9


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one storage class. `requests`: dollars for one request of each operation. `put_gb`, `get_gb`: dollars a GB that is
    uploaded or read. `storage_gb_month`: dollars a GB and month. `put_seconds`: what a small PUT takes, in the median."""

    name: str
    requests: dict[str, float]
    put_gb: float
    get_gb: float
    storage_gb_month: float
    put_seconds: float

    def of(self, operation: str, requests: float, size: float) -> float:
        """Dollars for so many requests that carried so many bytes in all."""
        by_size = self.put_gb if operation == "put" else self.get_gb if operation == "get" else 0.0
        return requests * self.requests.get(operation, 0.0) + size / GB * by_size


STANDARD = Prices(
    name="S3 Standard",
    requests={"put": 5e-6, "list": 5e-6, "get": 0.4e-6, "head": 0.4e-6, "delete": 0.0},
    put_gb=0.0,
    get_gb=0.0,
    storage_gb_month=0.023,
    put_seconds=0.040,
)
EXPRESS = Prices(
    name="S3 Express One Zone",
    requests={"put": 1.13e-6, "list": 1.13e-6, "get": 0.03e-6, "head": 0.03e-6, "delete": 0.0},
    put_gb=0.0032,
    get_gb=0.0006,
    storage_gb_month=0.11,
    put_seconds=0.006,
)
CLASSES = {"standard": STANDARD, "express": EXPRESS}
