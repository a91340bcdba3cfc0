"""Finding files, identifying them, and reading their bytes."""

import gzip
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.errors import SourceError
from redrive.rows.sources.files import compression
from redrive.rows.sources.files.files import Files, Stream, names_of, size_of
from tests.support.examples import examples


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


PACKED = pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])


def files(paths):
    return Files(paths, example="*.csv")


@pytest.fixture
def folder(tmp_path):
    for name in ("b.csv", "a.csv", "x.txt", "deep/er/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def found(paths, folder):
    return [str(Path(name).relative_to(folder)) for name in files(paths).find()]


def test_files_are_found_by_path_by_glob_and_by_list(folder):
    assert found(folder / "b.csv", folder) == ["b.csv"]
    assert found(str(folder / "*.csv"), folder) == ["a.csv", "b.csv"]
    assert found(folder / "**" / "*.csv", folder) == ["a.csv", "b.csv", "deep/er/c.csv"]
    assert found([folder / "x.txt", folder / "*.csv", folder / "a.csv"], folder) == ["x.txt", "a.csv", "b.csv"]


def test_names_are_unchanged(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert files("*.csv").find() == ["a.csv", "b.csv"]
    assert files("./a.csv").find() == ["./a.csv"]
    assert (files("a.csv").name, files(["a.csv", "b.csv"]).name) == ("a.csv", "a.csv and others")


def test_file_with_a_name_like_a_glob_is_found(folder):
    (folder / "fees[1].csv").write_text("x")
    assert found(folder / "fees[1].csv", folder) == ["fees[1].csv"]


def test_path_that_is_no_file_is_reported_in_a_sentence(folder, monkeypatch):
    monkeypatch.chdir(folder)
    os.mkfifo("pipe")
    cases = {
        "deliveries.csv": "there is no file deliveries.csv",
        "a.csv/deliveries.csv": "there is no file a.csv/deliveries.csv",
        "in\0valid": "there is no file in\0valid",
        "*.parquet": "there is no file that matches *.parquet",
        "deep*": "there is no file that matches deep*",
        "deep": "deep is a directory; name the files in it: deep/*.csv",
        "pipe": "pipe is a pipe or a device, which cannot be read twice: save it as a file first",
    }
    for path, sentence in cases.items():
        with pytest.raises(SourceError) as error:
            files(path).identity()
        assert str(error.value) == sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_reported(folder):
    (folder / "a.csv").chmod(0)
    with pytest.raises(SourceError, match="may not be read by this user: check its permissions"):
        files(folder / "a.csv").find()


@pytest.mark.parametrize("paths", [[], 7, None, b"a.csv", [7], "", [""], {"a.csv"}], ids=repr)
def test_pattern_without_a_file_is_rejected(paths):
    with pytest.raises(TypeError):
        files(paths)


def test_url_is_rejected_without_showing_it():
    with pytest.raises(ValueError) as error:
        files("s3://key:secret@bucket/a.csv")
    assert str(error.value).startswith("the files of a source must be on this machine, not at s3://…: ")
    assert "secret" not in str(error.value)


def test_identity_is_unchanged_by_new_files(folder):
    these = files(folder / "*.csv")
    identity = these.identity()
    assert names_of(identity) == [str(folder / "a.csv"), str(folder / "b.csv")]
    assert size_of(names_of(identity)) == 10
    (folder / "0.csv").write_text("late")
    assert these.difference(identity) is None


def test_identity_differs_for_a_different_file(folder):
    these = files(folder / "*.csv")
    path = folder / "a.csv"
    identity = these.identity()
    path.write_text("A.csv")
    assert these.difference(identity) == f"{path} is another file now: its beginning or end differs"
    path.write_text("a.c")
    assert these.difference(identity) == f"{path} has become shorter"
    path.write_text("a.csv and more")
    assert these.difference(identity) == f"{path} has grown since"
    path.unlink()
    assert these.difference(identity) == f"{path} is not among its files"
    (folder / "b.csv").unlink()
    assert these.difference(identity) == f"there is no file that matches {folder / '*.csv'}"


def test_start_and_end_of_a_file_distinguish_equal_sizes(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"b" * 4096 + b"middle" + b"e" * 4096)
    identity = files(path).identity()
    path.write_bytes(b"b" * 4096 + b"MIDDLE" + b"e" * 4096)
    assert files(path).difference(identity) == f"{path} is another file now: its content differs"
    path.write_bytes(b"b" * 4095 + b"Bmiddle" + b"e" * 4096)
    assert files(path).difference(identity) is not None
    path.write_bytes(b"b" * 4096 + b"middleE" + b"e" * 4095)
    assert files(path).difference(identity) is not None


LARGE = 5 << 20  # too large to be digested as a whole


def test_file_with_the_same_content_may_be_moved_or_copied(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    identity = files(path).identity()
    os.utime(path, ns=(1, 1))
    assert files(path).difference(identity) is None
    (tmp_path / "copy").write_bytes(path.read_bytes())
    (tmp_path / "copy").replace(path)
    assert files(path).difference(identity) is None


def test_large_file_that_was_modified_is_another_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * LARGE)
    identity = files(path).identity()
    assert files(path).difference(identity) is None
    os.utime(path, ns=(1, 1))
    assert "was written since, and is too large to be compared as a whole" in files(path).difference(identity)


def test_large_file_with_other_samples_is_another_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * LARGE)
    identity = files(path).identity()
    written = path.stat().st_mtime_ns
    path.write_bytes(b"x" * 1_000_000 + b"y" * (LARGE - 2_000_000) + b"x" * 1_000_000)
    os.utime(path, ns=(written, written))
    assert files(path).difference(identity) == f"{path} is another file now: its content differs"
    path.write_bytes(b"x" * LARGE)
    os.utime(path, ns=(written, written))
    assert files(path).difference(identity) is None


def test_identity_of_an_older_version_is_compared_by_its_parts(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"b" * 4096 + b"middle" + b"e" * 4096)
    (new,) = files(path).identity()
    old = [{name: new[name] for name in ("name", "size", "digest")}]
    os.utime(path, ns=(1, 1))
    assert files(path).difference(old) is None
    path.write_bytes(b"b" * 4095 + b"Bmiddle" + b"e" * 4096)
    assert files(path).difference(old) == f"{path} is another file now: its beginning or end differs"


def test_many_files_are_sampled_instead_of_read(tmp_path, monkeypatch):
    monkeypatch.setattr("redrive.rows.sources.files.identity._WHOLE_IN_ALL", 100_000)
    for number in range(3):
        (tmp_path / f"{number}.csv").write_bytes(bytes([number]) * 90_000)
    identity = files(tmp_path / "*.csv").identity()
    assert all(one["samples"] for one in identity)
    assert files(tmp_path / "*.csv").difference(identity) is None


def test_new_delivery_with_the_same_start_is_another_file(tmp_path):
    path = tmp_path / "deliveries.csv"
    path.write_text("".join(f"{number},monday\n" for number in range(5_000)))
    identity = files(path).identity()
    old, new = (
        (f"{number},monday\n" for number in range(2_000)),
        (f"{number},tuesday\n" for number in range(2_000, 6_000)),
    )
    path.write_text("".join([*old, *new]))
    assert files(path).difference(identity) == f"{path} has grown since"


@PACKED
@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(0, 300_000),
    steps=st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
)
def test_stream_returns_every_byte_and_seeks_to_any_position(tmp_path_factory, pack, seed, size, steps):
    data = random.Random(seed).randbytes(size // 2) + b"x" * (size - size // 2)
    path = tmp_path_factory.mktemp("stream") / "file"
    path.write_bytes(pack(data))
    stream = Stream(str(path))
    for step in steps:
        start = stream.position
        assert stream.read(step) == data[start : start + step]
    assert stream.position == min(size, sum(steps))
    for position in (size // 3, size // 2, 0, size):
        stream.seek(position)
        assert stream.position == position
        assert stream.read(10) == data[position : position + 10]
    assert stream.read(10) == b""
    assert (stream.fault, stream.progress()) == (None, path.stat().st_size)
    with pytest.raises(SourceError, match="has become shorter"):
        stream.seek(size + 1)
    stream.close()
    stream.close()


@PACKED
def test_progress_is_counted_in_bytes_on_disk(tmp_path, pack):
    data = random.Random(7).randbytes(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(pack(data))
    stream = Stream(str(path))
    stream.read(len(data) // 2)
    assert 0.45 < stream.progress() / path.stat().st_size < 0.75
    stream.close()


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "file.gz"), (zstd, "file.zst")], ids=["gzip", "zstd"])
def test_truncated_stream_returns_only_whole_members(tmp_path, pack, name):
    data = b"".join(b"%d,%d\n" % (number, number * number) for number in range(300))
    first, second = pack(data[:1_000]), pack(data[1_000:])
    path = tmp_path / name
    for kept in range(len(first) + len(second)):
        if kept == len(first):
            continue  # a whole file
        path.write_bytes((first + second)[:kept])
        stream = Stream(str(path))
        given = stream.read(1 << 20)
        assert given == (data[:1_000] if kept > len(first) else b"")
        assert stream.read(10) == b""
        assert stream.fault.endswith("stream ends early")
        stream.seek(len(given) // 2)
        assert given[len(given) // 2 :] == stream.read(1 << 20)
        stream.close()


@settings(max_examples=examples(200), deadline=None)
@given(place=st.integers(0), bit=st.integers(0, 7))
def test_gzip_with_a_flipped_bit_returns_only_right_bytes(tmp_path_factory, place, bit):
    data = b"".join(b"%d,%d\n" % (number, number * number) for number in range(300))
    packed = bytearray(gzip.compress(data[:1_000], mtime=0) + gzip.compress(data[1_000:], mtime=0))
    packed[2 + place % (len(packed) - 2)] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "file"
    path.write_bytes(bytes(packed))
    stream = Stream(str(path))
    given = stream.read(1 << 20)
    stream.close()
    assert given in (b"", data[:1_000], data)  # all of it where the bit is one of the header that means nothing
    assert (given == data) == (stream.fault is None)


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "file.gz"), (zstd, "file.ZST")], ids=["gzip", "zstd"])
def test_compressed_file_with_a_wrong_first_byte_is_no_text(tmp_path, pack, name):
    (tmp_path / name).write_bytes(b"?" + pack(b"1,2\n" * 100)[1:])
    stream = Stream(str(tmp_path / name))
    assert stream.read(100) == b""
    assert stream.fault.startswith("it does not begin as a")
    stream.close()


def test_decompressed_text_with_its_old_name_is_read(tmp_path):
    (tmp_path / "file.csv.gz").write_bytes(b"a,b\n")
    stream = Stream(str(tmp_path / "file.csv.gz"))
    assert (stream.read(100), stream.fault) == (b"a,b\n", None)
    stream.close()


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_concatenated_streams_are_one(tmp_path, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(b"a" * 100_000) + pack(b"") + pack(b"b" * 100_000))
    stream = Stream(str(path))
    assert stream.read(1 << 20) == b"a" * 100_000 + b"b" * 100_000
    assert stream.fault is None
    stream.close()


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_nothing_of_a_corrupt_member_is_returned(tmp_path, pack):
    data = random.Random(1).randbytes(200_000).hex().encode()
    packed = bytearray(pack(data))
    packed[10:20] = b"\xff" * 10  # Arrow writes no checksum into zstd: only what breaks its structure can be seen
    path = tmp_path / "file"
    path.write_bytes(pack(b"before") + bytes(packed))
    stream = Stream(str(path))
    assert stream.read(1 << 20) == b"before"
    assert "corrupt" in stream.fault
    stream.close()


def test_file_damaged_while_it_is_read_is_an_error(tmp_path):
    data = random.Random(1).randbytes(2_000_000).hex().encode()
    packed = gzip.compress(data)
    path = tmp_path / "file"
    path.write_bytes(packed)
    stream = Stream(str(path))
    assert stream.read(1_000) == data[:1_000]
    with open(path, "r+b") as file:
        file.seek(len(packed) // 2)
        file.write(b"\xff" * 100)
    with pytest.raises(SourceError, match="was changed while it was being read"):
        stream.read(len(data))
    stream.close()


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"PK\x03\x04", "a zip archive"), (b"BZh91AY&SY...", "bzip2"), (b"\xfd7zXZ\x00", "xz")],
    ids=["zip", "bzip2", "xz"],
)
def test_unknown_compression_is_reported(tmp_path, content, kind):
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(SourceError, match=kind):
        Stream(str(tmp_path / "file.csv"))


def test_text_that_starts_almost_like_an_archive_is_text(tmp_path):
    (tmp_path / "file.csv").write_bytes(b"BZh,PK\n")
    stream = Stream(str(tmp_path / "file.csv"))
    assert stream.read(100) == b"BZh,PK\n"
    stream.close()


class TestDecompressionBomb:
    ROWS = b"id,note\n" + b"1,a\n" * 1_000_000

    @pytest.fixture(params=["gzip", "zstd"])
    def path(self, request, tmp_path, monkeypatch):
        monkeypatch.setattr(compression, "_ANY_RATIO", 1 << 20)
        path = tmp_path / "in.csv"
        with pa.CompressedOutputStream(str(path), request.param) as file:
            file.write(self.ROWS)
        return path

    def test_file_is_rejected_with_the_variable_that_allows_it(self, path, monkeypatch):
        monkeypatch.setenv(compression.RATIO_VARIABLE, "50")
        with pytest.raises(SourceError, match=r"unpacks to more than 50 times .* REDRIVE_MAX_COMPRESSION_RATIO"):
            Stream(str(path))
        monkeypatch.setenv(compression.RATIO_VARIABLE, "20000")
        stream = Stream(str(path))
        assert stream.read(9) == self.ROWS[:9]
        stream.close()

    def test_invalid_ratio_is_rejected(self, path, monkeypatch):
        monkeypatch.setenv(compression.RATIO_VARIABLE, "much")
        with pytest.raises(SourceError, match="must be a whole number of 1 or more, not 'much'"):
            Stream(str(path))
