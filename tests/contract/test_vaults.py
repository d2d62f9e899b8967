"""What every vault of a lower tier promises: over files on this disk, and over a real S3 server."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages.ids import TenantId
from services.store.tiers import oss_vault
from services.store.tiers.errors import RecordDamaged, RecordMissing, VaultAway, VaultRefused
from services.store.tiers.nvme_vault import NvmeVault
from services.store.tiers.oss_vault import Bucket, OssVault
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item, Vault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.s3_server import S3Server

NVME_BYTES = 64 << 20
TENANT = TenantId("public")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@dataclass
class Kind:
    """Makes vaults over the same bytes: each stands for a start of the node."""

    make: Callable[[], Vault]


@pytest.fixture(params=["nvme", pytest.param("oss", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "nvme":
        return Kind(lambda: NvmeVault(tmp_path / "nvme", NVME_BYTES))
    server: S3Server = request.getfixturevalue("s3")
    mesh = f"mesh-{os.urandom(4).hex()}"
    return Kind(lambda: OssVault(server.bucket, mesh))


def open_all(vault: Vault) -> list[Item]:
    return [item for page in vault.open() for item in page]


def make_item(
    size_bytes: int, chunk_bytes: int, place: int = 0, serial: int = 7
) -> tuple[Item, bytes, memoryview]:
    """(item, checksums, bytes)"""
    data = memoryview(os.urandom(size_bytes))
    facts = Facts(BlockKey(os.urandom(16)), TENANT, size_bytes, chunk_bytes, serial)
    return Item(facts, place), chunk_checksums(data, chunk_bytes), data


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes"),
    [(1, 1), (4096, 4096), (100_000, 100), (30 * (48 << 10), 48 << 10), (20 << 20, 1 << 20)],
)
def test_what_was_written_is_read_also_after_a_restart(
    kind: Kind, size_bytes: int, chunk_bytes: int
) -> None:
    vault = kind.make()
    assert open_all(vault) == []
    item, sums, data = make_item(size_bytes, chunk_bytes)
    vault.write(item, sums, data)
    vault.sync()  # a durable put is answered after it
    target = memoryview(bytearray(size_bytes))
    assert vault.read(item, target) == sums
    assert target == data
    vault.close()
    again = kind.make()
    (found,) = open_all(again)
    assert (found.facts.key, found.facts.tenant) == (item.facts.key, TENANT)
    assert (found.facts.size_bytes, found.facts.chunk_bytes) == (size_bytes, chunk_bytes)
    target[:] = bytes(size_bytes)
    assert again.read(found, target) == sums
    assert target == data
    again.close()


def test_what_was_erased_stays_away_and_erasing_twice_is_no_error(kind: Kind) -> None:
    vault = kind.make()
    open_all(vault)
    item, sums, data = make_item(5000, 1000)
    other, other_sums, other_data = make_item(5000, 1000, place=65536, serial=8)
    vault.write(item, sums, data)
    vault.write(other, other_sums, other_data)
    vault.erase(item)
    vault.erase(item)
    vault.close()
    again = kind.make()
    assert [found.facts.key for found in open_all(again)] == [other.facts.key]
    again.probe()
    again.close()


def test_damaged_bytes_are_not_written_and_what_is_not_there_is_missing(kind: Kind) -> None:
    vault = kind.make()
    open_all(vault)
    item, sums, data = make_item(5000, 1000)
    with pytest.raises(RecordDamaged):
        vault.write(item, bytes(8) + sums[8:], data)
    with pytest.raises((RecordMissing, RecordDamaged)):
        vault.read(item, memoryview(bytearray(5000)))
    vault.close()
    again = kind.make()
    assert open_all(again) == []
    again.close()


def test_a_record_is_not_taken_for_another_one(tmp_path: Path) -> None:
    vault = NvmeVault(tmp_path, NVME_BYTES)
    open_all(vault)
    old, sums, data = make_item(5000, 1000)
    new, new_sums, new_data = make_item(5000, 1000, serial=8)
    vault.write(old, sums, data)
    vault.write(new, new_sums, new_data)  # in the same place
    with pytest.raises(RecordMissing):
        vault.read(old, memoryview(bytearray(5000)))
    target = memoryview(bytearray(5000))
    assert vault.read(new, target) == new_sums
    vault.close()


def test_every_flipped_bit_on_disk_is_noticed(tmp_path: Path) -> None:
    vault = NvmeVault(tmp_path, NVME_BYTES)
    open_all(vault)
    item, sums, data = make_item(9000, 1000)
    vault.write(item, sums, data)
    target = memoryview(bytearray(9000))
    with (tmp_path / "segment.dat").open("r+b") as file:
        for at in (0, 9, 30, 60, 140, 170, 4096, 4096 + 5000, 4096 + 8999):
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))
            file.flush()
            with pytest.raises((RecordDamaged, RecordMissing)):
                vault.read(item, target)
            file.seek(at)
            file.write(bytes([byte]))
            file.flush()
    assert vault.read(item, target) == sums
    vault.close()


def test_a_folder_that_cannot_be_used_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(VaultRefused, match="file"):
        open_all(NvmeVault(tmp_path / "file", NVME_BYTES))
    with pytest.raises(VaultRefused, match="disk is full"):
        open_all(NvmeVault(tmp_path / "large", 1 << 50))
    with pytest.raises((VaultRefused, VaultAway)):
        open_all(NvmeVault(Path("/proc/moonpool"), NVME_BYTES))
    first = NvmeVault(tmp_path / "shared", NVME_BYTES)
    open_all(first)
    with pytest.raises(VaultRefused, match="in use by another node"):
        open_all(NvmeVault(tmp_path / "shared", NVME_BYTES))
    first.close()
    open_all(first)
    first.close()


@pytest.mark.slow
def test_a_bucket_that_cannot_be_used_is_refused_in_words(s3: S3Server) -> None:
    good = s3.bucket
    for bucket, says in [
        (Bucket(good.endpoint, "nowhere", *credentials(good)), "no such bucket"),
        (Bucket(good.endpoint, good.name, "stranger", "x", "us-east-1"), "credentials|Denied"),
        (Bucket(good.endpoint, good.name, good.access_key, "x", "us-east-1"), "credentials"),
    ]:
        with pytest.raises(VaultRefused, match=says):
            open_all(OssVault(bucket, "mp"))
    with pytest.raises(VaultAway):
        open_all(OssVault(Bucket("http://127.0.0.1:9", good.name, *credentials(good)), "mp"))


def credentials(bucket: Bucket) -> tuple[str, str, str]:
    return bucket.access_key, bucket.secret_key, bucket.region


@pytest.mark.slow
def test_more_objects_than_a_page_holds_are_all_found(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oss_vault, "PAGE_OBJECTS", 4)
    vault = OssVault(s3.bucket, "many")
    client = s3.client()
    for number in range(11):
        name = f"many/public/{number:032x}-64-64"
        client.put_object(Bucket=s3.bucket.name, Key=name, Body=b"")
    client.put_object(Bucket=s3.bucket.name, Key="many/public/not-ours", Body=b"")
    assert len(open_all(vault)) == 11
    vault.close()
    client.close()


@pytest.mark.slow
def test_large_objects_go_in_parts_side_by_side_and_come_back_whole(s3: S3Server) -> None:
    vault = OssVault(s3.bucket, f"mesh-{os.urandom(4).hex()}")
    open_all(vault)
    item, sums, data = make_item(48 << 20, 1 << 20)
    vault.write(item, sums, data)
    target = memoryview(bytearray(data.nbytes))
    assert vault.read(item, target) == sums
    assert target == data
    vault.close()


@pytest.mark.slow
async def test_of_a_large_object_whose_parts_fail_nothing_is_left(s3: S3Server) -> None:
    mesh = f"mesh-{os.urandom(4).hex()}"
    async with FaultyProxy(s3.port) as proxy:
        far = replace(s3.bucket, endpoint=f"http://127.0.0.1:{proxy.port}")
        vault = OssVault(far, mesh)
        await asyncio.to_thread(open_all, vault)
        item, sums, data = make_item(32 << 20, 1 << 20)
        proxy.erring = True
        with pytest.raises(VaultAway):
            await asyncio.to_thread(vault.write, item, sums, data)
        proxy.heal()
        assert await asyncio.to_thread(open_all, vault) == []
        await asyncio.to_thread(vault.write, item, sums, data)
        proxy.corrupting = True
        with pytest.raises((RecordDamaged, VaultAway)):
            await asyncio.to_thread(vault.read, item, memoryview(bytearray(data.nbytes)))
        proxy.heal()
        target = memoryview(bytearray(data.nbytes))
        assert await asyncio.to_thread(vault.read, item, target) == sums
        assert target == data
        await asyncio.to_thread(vault.close)
