"""Public data is fetched whole or not at all: resumed where it was cut, bounded, checked, and never outside of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.real_data import DATA, needs
from tests.warehouse.public_data.host import NOWHERE, Host, packed, serving
from warehouse.errors import RequestError
from warehouse.public_data import download as downloads
from warehouse.public_data.catalogue import DATA_SETS, PinnedArchive, PinnedFile, PublicDataSet, PublicFolder
from warehouse.public_data.download import digest_of_tree, fetch, open_client, read_members

LONG = bytes(range(256)) * 2_000


def unheard(url: str, done: int, most: int) -> None: ...


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(downloads, "FIRST_WAIT_SECONDS", 0.0)
    with serving() as host:
        yield host


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_data_set_comes_whole_and_is_not_fetched_again(host: Host, tmp_path: Path) -> None:
    data = host.data_set("mine", one=b"first", two=LONG)
    told: list[tuple[str, int, int]] = []
    place = fetch(data, tmp_path / "new" / "cache", lambda *now: told.append(now))
    assert place == tmp_path / "new" / "cache" / "folder_mine"
    assert contents(place) == {"one": b"first", "two": LONG}
    assert told[-1] == (f"{host.url}/two", len(LONG), len(LONG))
    assert fetch(data, tmp_path / "new" / "cache", unheard) == place and len(host.asked) == 2


def test_a_cut_line_is_taken_up_where_it_broke(host: Host, tmp_path: Path) -> None:
    host.cuts = [100_000, 50_000]
    place = fetch(host.data_set("mine", one=LONG), tmp_path, unheard)
    assert contents(place) == {"one": LONG}
    assert host.asked == [("/one", None), ("/one", "bytes=100000-"), ("/one", "bytes=150000-")]


def test_what_came_before_the_end_is_kept_for_the_next_time(host: Host, tmp_path: Path) -> None:
    data = host.data_set("mine", one=b"first", two=LONG)
    host.cuts = [5, 1_000, *[1_000] * (downloads.ATTEMPTS - 1)]
    with pytest.raises(RequestError, match=r"/two cannot be fetched .*partial download is kept"):
        fetch(data, tmp_path, unheard)
    assert data.place(tmp_path) is None, "half of a data set is none"
    assert contents(fetch(data, tmp_path, unheard)) == {"one": b"first", "two": LONG}
    assert host.asked[-1] == ("/two", f"bytes={1_000 * downloads.ATTEMPTS}-")
    assert [path for path, _ in host.asked].count("/one") == 1


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (LONG[::-1], r"SHA-256 \w{64}, but \w{64}"),
        (LONG[:-1], r"SHA-256 \w{64}, but \w{64}"),
        (LONG * 2, f"more than the {len(LONG):,} bytes"),
    ],
    ids=["other bytes", "fewer bytes", "more bytes"],
)
def test_another_content_is_refused_and_not_kept(host: Host, tmp_path: Path, served: bytes, told: str) -> None:
    data = host.data_set("mine", one=LONG)
    host.files["/one"] = served
    with pytest.raises(RequestError, match=told):
        fetch(data, tmp_path, unheard)
    assert [name for name in contents(tmp_path) if name != ".lock"] == []


def test_a_passing_fault_of_the_server_is_retried_and_a_lasting_one_reported(host: Host, tmp_path: Path) -> None:
    host.statuses = [503, 429]
    assert fetch(host.data_set("mine", one=LONG), tmp_path, unheard).is_dir()
    data = host.data_set("other", two=LONG)
    del host.files["/two"]
    with pytest.raises(RequestError, match="/two cannot be fetched: the server returned 404"):
        fetch(data, tmp_path, unheard)
    assert len(host.asked) == 4, "what is not there is not asked for again"


def test_a_redirection_to_an_open_line_is_refused_too() -> None:
    def elsewhere(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://example.org/films.json"})

    with open_client() as client:
        client._transport, client._mounts = httpx.MockTransport(elsewhere), {}
        with pytest.raises(RequestError, match="is not HTTPS"):
            client.get("https://example.org/films.json")


TREE = {"europe/au.json": b"{}", "LICENSE.md": b"CC0"}
PATTERN = r"[a-z-]+/[a-z]+\.json|LICENSE\.md"


def archive(url: str, size: int = 10_000) -> PinnedArchive:
    return PinnedArchive(url=url, members=PATTERN, size=size, sha256=digest_of_tree(TREE))


def test_of_an_archive_only_wanted_files_are_taken_and_none_outside_of_its_folder(host: Host, tmp_path: Path) -> None:
    others = {"top/README.md": b"", "top/../../evil.json": b"", "/etc/x/evil.json": b"", "top/europe/../../x.json": b"", "evil.json": b""}
    wanted = {f"top/{name}": content for name, content in TREE.items()}
    host.files["/tree"] = packed({**others, **wanted}, links={"top/europe/li.json": "/etc/passwd"})
    folder = PublicFolder("book", NOWHERE, (archive(f"{host.url}/tree"),))
    data = PublicDataSet(name="book", about="", licence="", entries=("book",), folders=(folder,))
    root = tmp_path / "inner" / "root"
    assert contents(fetch(data, root, unheard)) == TREE
    assert sorted(contents(tmp_path)) == ["inner/root/.lock", "inner/root/book/LICENSE.md", "inner/root/book/europe/au.json"]


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        (packed({"top/europe/au.json": b"{}"}), "SHA-256"),
        (packed({"top/x": bytes(30_000)}), "unpacks to more than"),
        (packed({f"top/{name}": content for name, content in TREE.items()})[:-20], "not a readable archive"),
        (b"<html>", "not a readable archive"),
    ],
    ids=["a file is missing", "a bomb", "cut", "no archive"],
)
def test_an_archive_that_is_another_one_is_refused(whole: bytes, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        read_members(whole, archive("https://example.org/tree"))


def mirror(host: Host, data: PublicDataSet) -> PublicDataSet:
    """The real set with its real pins, out of the copies that are here."""
    for folder in data.folders:
        place = DATA / folder.name
        for part in folder.parts:
            if isinstance(part, PinnedFile):
                host.files[f"/{folder.name}/{part.name}"] = (place / part.name).read_bytes()
            else:
                host.files[f"/{folder.name}/archive"] = packed({f"top-0/{name}": content for name, content in contents(place).items()})
    return host.mirrored(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs(*(folder.name for folder in DATA_SETS[name].folders)))
        for name in ("films", "countries", "gsm8k", "mbpp", "humaneval", "musique")
    ],
)
def test_the_real_sets_come_as_they_were_pinned(name: str, host: Host, tmp_path: Path) -> None:
    data = mirror(host, DATA_SETS[name])
    fetch(data, tmp_path, unheard)
    for folder in data.folders:
        assert contents(tmp_path / folder.name).items() <= contents(DATA / folder.name).items()
        assert sum(map(len, contents(tmp_path / folder.name).values())) == sum(part.size for part in folder.parts)


def test_every_pin_is_over_https_at_a_commit_and_stays_in_its_folder() -> None:
    for data in DATA_SETS.values():
        for folder in data.folders:
            assert len(folder.repository.commit) == 40
            for part in folder.parts:
                assert part.url.startswith("https://") and folder.repository.commit in part.url and len(part.sha256) == 64
                assert isinstance(part, PinnedArchive) or Path(part.name).name == part.name
        assert all(entry.split("/")[0] in {folder.name for folder in data.folders} for entry in data.entries)
