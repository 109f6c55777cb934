"""The section `cdap` of the settings."""

from pydantic import Field

from tms.compat.cdap.app import CDAP, Cdap, CdapLimits
from tms.server.front import Front, FrontSection, FrontTerms
from tms.server.service import Service

_CDAP = CdapLimits()
_MIB = 1 << 20
_JAVA_INT_MAX = 2**31 - 1  # the largest value that CDAP's own settings take


class CdapSection(FrontSection):
    """CDAP's protocol."""

    chunk_bytes: int = Field(default=_CDAP.chunk_bytes, ge=1_024, le=_MIB)
    tx_max_lifetime_s: int = Field(
        default=_CDAP.tx_max_lifetime_ms // 1_000, ge=1, le=_JAVA_INT_MAX
    )
    ttl_s: int = Field(default=_CDAP.ttl_s, ge=1, le=_JAVA_INT_MAX)

    def limits(self) -> CdapLimits:
        """The values as the front end takes them."""
        return CdapLimits(self.chunk_bytes, self.tx_max_lifetime_s * 1_000, self.ttl_s)

    def open(self, service: Service, terms: FrontTerms) -> Front:
        """CDAP's paths; they need no terms."""
        return Front(CDAP, paths=Cdap(service, self.limits()))
