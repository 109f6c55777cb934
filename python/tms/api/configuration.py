"""The configuration of a service: its part of the table of operations."""

from typing import Annotated, Protocol

from tms.api.operation import Named, Resource, get
from tms.model.access import Access
from tms.model.setting import ConfiguredSetting


class ConfigurationApi(Protocol):
    """The configuration of the instance that answers."""

    @get("configuration", Resource.SERVICE, Access.MANAGE)
    def settings(
        self,
    ) -> Annotated[list[ConfiguredSetting], Named("Configuration", "By section.", "settings")]:
        """All settings with which the instance was started, each with its source. Secrets are
        hidden; the list is empty if another program than `tms serve` started the service."""
