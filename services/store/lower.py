"""The lower tiers as the settings want them: shelves for the core, vaults for the mover."""

import time
from dataclasses import dataclass
from pathlib import Path

from moonpool.settings import SettingsError, StoreSettings
from services.store.admission import WriteBudget
from services.store.shelf import Shelf
from services.store.tiers import LowerTier, NvmeTier, OssTier
from services.store.tiers.nvme_vault import THREADS as NVME_THREADS
from services.store.tiers.nvme_vault import NvmeVault
from services.store.tiers.vault import Vault

HEADROOM = 0.05  # of a lower tier: it is large, and its bursts are what dram lets through


@dataclass(frozen=True, slots=True)
class Lower:
    shelf: Shelf
    vault: Vault
    threads: int


def make_lower(settings: StoreSettings, node: str) -> list[Lower]:
    """Nearest first; none without settings. Raises SettingsError."""
    tiers: list[Lower] = []
    if settings.nvme_dir:
        try:
            tier = NvmeTier(settings.nvme_bytes)
        except ValueError as error:
            raise SettingsError(f"MOONPOOL_NVME_BYTES: {error}") from error
        vault = NvmeVault(Path(settings.nvme_dir) / node, tier.bytes_total)
        shelf = make_shelf(tier, settings.nvme_fills_per_day)
        tiers.append(Lower(shelf, vault, NVME_THREADS))
    if settings.oss_endpoint:
        tiers.append(_make_oss(settings))
    return tiers


def _make_oss(settings: StoreSettings) -> Lower:
    # Imported here: who has no bucket need not wait for boto3.
    from services.store.tiers.oss_vault import OBJECT_MAX_BYTES, THREADS, Bucket, OssVault

    if not settings.oss_access_key or not settings.oss_secret_key:
        raise SettingsError(
            "MOONPOOL_OSS_ENDPOINT is set: MOONPOOL_OSS_ACCESS_KEY and MOONPOOL_OSS_SECRET_KEY "
            "must be too"
        )
    bucket = Bucket(
        settings.oss_endpoint,
        settings.oss_bucket,
        settings.oss_access_key,
        settings.oss_secret_key,
        settings.oss_region,
    )
    try:
        vault = OssVault(bucket, settings.mesh)
    except ValueError as error:
        raise SettingsError(f"MOONPOOL_OSS_ENDPOINT: {error}") from error
    shelf = make_shelf(OssTier(settings.oss_bytes), object_max_bytes=OBJECT_MAX_BYTES)
    return Lower(shelf, vault, THREADS)


def make_shelf(
    tier: LowerTier, fills_per_day: float = 0.0, object_max_bytes: int = 1 << 40
) -> Shelf:
    """Serials are nanoseconds since 1970, so that each life's are above those before it."""
    return Shelf(
        tier,
        headroom=HEADROOM,
        budget=WriteBudget(tier.bytes_total, fills_per_day),
        first_serial=time.time_ns(),
        object_max_bytes=object_max_bytes,
    )
