"""Values from the edges of each type: what just fits, what just does not, and how they may be spelled.

For formats with types a value is what `pa.array` takes, with dates and times as numbers, since those of Python end with
the year 9999. For formats of text it is a text,
right or nearly right. Strategies are made once: to make one takes longer
than to draw from it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from support.oracle.counting import edges

Strategy = SearchStrategy[Any]

ZONES = (
    "Europe/Berlin", "UTC", "America/New_York", "Asia/Kolkata", "Africa/Casablanca", "Australia/Lord_Howe", "+05:30",
    "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Europe/London", "Africa/Monrovia", "Asia/Tehran",
    "Antarctica/Troll", "-03:30",
)  # fmt: skip
YEARS = (1, 2, 1582, 1583, 1677, 1678, 1883, 1890, 1900, 1901, 1916, 1945, 1969, 1970, 1972, 2000, 2011, 2016, 2024,
         2026, 2036, 2037, 2038, 2039, 2040, 2099, 2100, 2261, 2262, 2500, 9998, 9999)  # fmt: skip
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1)
MICRO = timedelta(microseconds=1)


# --- types ---


@lru_cache(maxsize=2048)
def decimals() -> Strategy:
    """Every precision and scale, often those that Spark has as defaults and those at the ends."""
    usual = st.sampled_from(
        [(38, 18), (38, 10), (38, 18), (38, 10), (10, 0), (18, 0), (38, 0), (38, 38), (1, 1), (9, 2)]
    )
    some = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
    return edges("decimal type", usual=usual, any=some).map(lambda pair: pa.decimal128(*pair))


PLAIN: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(), "STRING": pa.string(), "BINARY": pa.binary(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"), "TIMESTAMP_NTZ": pa.timestamp("us"),
}  # fmt: skip


@lru_cache(maxsize=2048)
def plain_types() -> Strategy:
    """Every type, and more often those with the most edges."""
    each = edges("type", **{name: st.just(kind) for name, kind in PLAIN.items()}, DECIMAL=decimals())
    often = edges("type", DECIMAL=decimals(), DECIMAL_=decimals(), TIMESTAMP=st.just(PLAIN["TIMESTAMP"]))
    return st.one_of(each, often)


@lru_cache(maxsize=2048)
def types(*, nested: bool, text_keys: bool = True) -> Strategy:
    """Types of columns. `text_keys`: the keys of maps are STRING, as in JSON."""
    if not nested:
        return plain_types()
    plain = plain_types()
    keys = st.just(pa.string()) if text_keys else st.sampled_from([pa.string(), pa.int32(), pa.date32()])

    def wrap(inner: Strategy) -> Strategy:
        structs = st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: pa.struct([pa.field(name, kind) for name, kind in zip("xy", kinds, strict=False)])
        )
        maps = st.tuples(keys, inner).map(lambda pair: pa.map_(*pair))
        return edges("type", ARRAY=inner.map(pa.list_), STRUCT=structs, MAP=maps)

    return st.one_of(plain, plain, plain, wrap(plain), wrap(wrap(plain)))


# --- names and texts ---

ODD_NAMES = (
    "a b", "A", "a.b", "a`b", "ä", "日本", "\ufeffa", "a-b", "1", "select", "İ", "ß", "a\tb", " a", "a ", "a,b", 'a"b',
    "a'b",
    "_c0", "a\\b", "{a}", "a:b",
)  # fmt: skip
PLAIN_NAMES = ("id", "Name", "value", "ts", "key", "x1", "_x")


def names(count: int) -> Strategy:
    """As many different names, which no case makes equal."""
    name = edges("name", plain=st.sampled_from(PLAIN_NAMES), odd=st.sampled_from(ODD_NAMES))
    return st.lists(name, min_size=count, max_size=count, unique_by=str.casefold)


ODD_TEXTS = (
    "", " ", "  ", "x", "a b", " a", "a ", "\ta", "a\t", '"', '""', "'", "a'b", 'a"b', "\\", "\\\\", "\\n", '\\"',
    "a\\",
    ",", "a,b", ";", "|", "\u2028", "\x85", "\xa0", "\u3000", "\x00", "\x01", "\x1f", "\x7f", "\ufeff", "\ufeffa", "ä",
    "e\u0301", "日本", "🦆", "\ufffd", "null", "NULL", "None", "NaN", "Inf", "-", "true", "1", "1.0", "0x1", "#", "# a",
    "{}",
    "[]", '{"a":1}', "2020-01-01", "\u202e", "\uffff", "1e3", "a" * 40, "ソ", "表|ポ", "\r", "é\u0301",
)  # fmt: skip


@lru_cache(maxsize=2048)
def texts(*, lines: bool = False) -> Strategy:
    """Odd texts. `lines`: line ends within them, too."""
    some = "a1 ,;|\"'\\#\t\x00\xa0ä\u2028🦆\ufeff" + ("\n\r" if lines else "")
    more: dict[str, Strategy] = {}
    if lines:
        more = {"lines": st.sampled_from(["\n", "\r\n", "\r", "a\nb", "a\r\nb", "a\rb", "\n\n", "a\n", "\nb"])}
    return edges("text", odd=st.sampled_from(ODD_TEXTS), mixed=st.text(some, max_size=6), **more)


# --- values of formats with types ---


def around(*numbers: int) -> list[int]:
    return sorted({near for number in numbers for near in (number - 1, number, number + 1)})


@lru_cache(maxsize=2048)
def integers(bits: int) -> Strategy:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    powers = around(*(10**n for n in range(20)), *(1 << n for n in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63)))
    inside = [n for power in powers for n in (power, -power) if least <= n <= most]
    return edges(
        f"{bits} bits",
        ends=st.sampled_from([least, least + 1, most - 1, most]),
        zero=st.sampled_from([0, -1, 1]),
        powers=st.sampled_from(inside),
        any=st.integers(least, most),
    )


@lru_cache(maxsize=2048)
def unscaled(digits: int) -> Strategy:
    """Whole numbers of up to so many decimal digits, often of exactly as many."""
    most = 10**digits - 1
    counts = st.integers(1, digits)
    return edges(
        "decimal",
        most=st.sampled_from([most, -most]),
        nought=st.just(0),
        power=counts.map(lambda n: 10 ** (n - 1)),
        nines=counts.map(lambda n: -(10**n - 1)),
        half=counts.map(lambda n: 5 * 10 ** (n - 1)),
        any=st.integers(-most, most),
    )


def scaled(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def single(number: float) -> float:
    """The number as 32 bits hold it."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


@lru_cache(maxsize=2048)
def floats(bits: int) -> Strategy:
    ends = [
        5e-324,
        1.7976931348623157e308,
        2.0**53,
        2.0**53 + 2,
        1e16,
        1e22,
        1e23,
        0.1,
        1 / 3,
        1e-7,
        9007199254740993.0,
    ]
    if bits == 32:
        ends = [single(one) for one in (1.4e-45, 3.4028235e38, 2.0**24, 2.0**24 + 2, 0.1, 1 / 3, 1e-38, 16777217.0)]
    return edges(
        f"float of {bits} bits",
        nan=st.just(math.nan),
        infinite=st.sampled_from([math.inf, -math.inf]),
        nought=st.sampled_from([0.0, -0.0]),
        ends=st.sampled_from([*ends, *(-one for one in ends)]),
        any=st.floats(width=64 if bits == 64 else 32),
    )


@lru_cache(maxsize=2048)
def days(*, beyond: bool = True) -> Strategy:
    """Days since 1970."""
    firsts = [(date(year, 1, 1) - _EPOCH_DAY).days for year in YEARS]
    switch = (date(1582, 10, 15) - _EPOCH_DAY).days
    leap = [(date(year, 3, 1) - _EPOCH_DAY).days for year in (4, 1500, 1600, 1700, 1900, 2000, 2024, 2100)]
    least, most = (date(1, 1, 1) - _EPOCH_DAY).days, (date(9999, 12, 31) - _EPOCH_DAY).days
    more = {"beyond": st.sampled_from([most + 1, least - 1, 10_000_000, -10_000_000])} if beyond else {}
    return edges(
        "day",
        years=st.sampled_from([n for n in around(*firsts) if least <= n <= most]),
        switch=st.integers(switch - 11, switch + 1),
        leap=st.sampled_from(around(*leap)),
        any=st.integers(least, most),
        **more,
    )


@lru_cache(maxsize=1024)
def changes(zone: str, year: int) -> tuple[datetime, ...]:
    """The walls of a zone's clock at which it is changed in a year, as they are before the change."""
    if zone[:1] in "+-":
        return ()
    info, found = ZoneInfo(zone), []

    def offset(at: datetime) -> timedelta:
        return at.replace(tzinfo=timezone.utc).astimezone(info).utcoffset() or timedelta()

    start = datetime(year, 1, 1) if year > 1 else datetime(1, 1, 2)
    for day in range(364):
        at = start + timedelta(days=day)
        if offset(at) != offset(at + timedelta(days=1)):
            low, high = at, at + timedelta(days=1)
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) / 2
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append(high.replace(microsecond=0) + offset(low))
    return tuple(found)


_CLOCKS = [timedelta(hours=h, minutes=m, seconds=s) for h, m, s in
           ((0, 0, 0), (0, 0, 1), (1, 30, 0), (2, 0, 0), (2, 30, 0), (3, 0, 0), (12, 0, 0), (23, 59, 59))]  # fmt: skip
_FRACTIONS = (0, 1, 999, 1000, 123_456, 500_000, 999_999)


@lru_cache(maxsize=2048)
def walls(zone: str) -> Strategy:
    """Times on a clock of a zone, as datetimes without one, often where the clock is changed."""
    near = st.sampled_from([timedelta(minutes=m) for m in (-61, -60, -59, -30, -1, 0, 1, 29, 30, 59, 60, 61, 90)])
    years = st.sampled_from([year for year in YEARS if 1 < year < 9999])
    with_changes = years.filter(lambda year: bool(changes(zone, year)))
    fraction = st.sampled_from(_FRACTIONS).map(lambda n: n * MICRO)
    of_year = st.tuples(st.sampled_from(YEARS), st.integers(1, 12), st.integers(1, 28)).map(lambda p: datetime(*p))
    more: dict[str, Strategy] = {}
    if any(changes(zone, year) for year in (2024, 2011, 1945)):
        changed = with_changes.flatmap(lambda year: st.sampled_from(changes(zone, year)))
        more["changed"] = st.builds(lambda at, by: at + by, changed, near)
        more["skipped"] = more["skipped_"] = changed.map(lambda at: at + timedelta(minutes=30))
        later = st.sampled_from([2038, 2040, 2099, 2500]).filter(lambda year: bool(changes(zone, year)))
        if any(changes(zone, year) for year in (2038, 2040, 2099, 2500)):
            changed_later = later.flatmap(lambda year: st.sampled_from(changes(zone, year)))
            more["changed_later"] = st.builds(lambda at, by: at + by, changed_later, near)
    return edges(
        "time",
        years=st.builds(lambda day, clock, part: day + clock + part, of_year, st.sampled_from(_CLOCKS), fraction),
        summer=st.sampled_from(YEARS).map(lambda year: datetime(year, 7, 1, 12)),
        ends=st.sampled_from([datetime.min, datetime.max, datetime(1582, 10, 4, 23), datetime(1582, 10, 15), _EPOCH]),
        **more,
    )


@lru_cache(maxsize=2048)
def moments(zone: str, *, beyond: bool = True) -> Strategy:
    """Microseconds since 1970."""
    inside = walls(zone).map(lambda wall: (wall - _EPOCH) // MICRO)
    ends = [(1 << 63) - 1, -(1 << 63), (1 << 63) // 1000 + 1, 253_402_300_800_000_000, -62_135_596_800_000_001]
    return edges("moment", wall=inside, **({"beyond": st.sampled_from(ends)} if beyond else {}))


@lru_cache(maxsize=2048)
def values(kind: pa.DataType, *, beyond: bool = True, zone: str = "Europe/Berlin") -> Strategy:
    """Values of a type, null among them. `beyond`: days and moments outside of the years 1 to 9999, too."""
    inner = _values(kind, beyond, zone)
    return st.one_of(inner, inner, inner, inner, st.none())


def _values(kind: pa.DataType, beyond: bool, zone: str) -> Strategy:
    if pt.is_integer(kind):
        return integers(kind.bit_width)
    if pt.is_decimal(kind):
        return unscaled(kind.precision).map(lambda number: scaled(number, kind.scale))
    if pt.is_floating(kind):
        return floats(kind.bit_width)
    if pt.is_boolean(kind):
        return st.booleans()
    if pt.is_string(kind):
        return texts(lines=True)
    if pt.is_binary(kind):
        return edges(
            "binary", text=texts().map(str.encode), odd=st.sampled_from([b"\xff", b"\xed\xa0\x80", b"", b"\0"])
        )
    if pt.is_date(kind):
        return days(beyond=beyond)
    if pt.is_timestamp(kind):
        return moments(zone, beyond=beyond)
    if pt.is_list(kind):
        return st.lists(values(kind.value_type, beyond=beyond, zone=zone), max_size=3)
    if pt.is_map(kind):
        keys = _values(kind.key_type, False, zone)
        pair = st.tuples(keys, values(kind.item_type, beyond=beyond, zone=zone))
        return st.lists(pair, max_size=2, unique_by=lambda pair: pair[0])
    parts = {field.name: values(field.type, beyond=beyond, zone=zone) for field in kind}
    return st.fixed_dictionaries(parts)


# --- spelled values, right and nearly right ---


def _spoiled(text: Strategy) -> Strategy:
    """A text and what resembles it."""

    def spoil(pair: tuple[str, str]) -> str:
        word, how = pair
        return how.replace("@", word)

    ways = st.sampled_from(
        ["@"] * 8 + [" @", "@ ", "\t@", "+@", "0@", "@.0", "@x", '"@"', "@@", "- @", "\xa0@", "@\x00", "(@)"]
    )
    return st.tuples(text, ways).map(spoil)


@lru_cache(maxsize=2048)
def spelled_integers(bits: int) -> Strategy:
    most = 1 << (bits - 1)
    beyond = st.sampled_from(
        [
            most,
            -most - 1,
            (1 << 64) + 1,
            (1 << 32) + 1,
            (1 << 128) + 1,
            most * 2,
            most * 2 - 1,
            10**19,
            10**20,
            -(10**25),
            1 << 63,
            1 << 64,
        ]
    )
    odd = ["", "-", "+", "1.", ".5", "1e3", "1E2", "1.0", "-0", "00", "007", "1_000", "1,000", "0x10", "0b1", "１", "٣",
           "NaN",
           "true", "1L", "1d", " ", "--1", "1-", "9" * 40, "9" * 5000,
           "0" * 30 + "1", "-00", "+0", "1e0", "12e-1"]  # fmt: skip
    return edges(
        f"spelled {bits} bits",
        value=_spoiled(integers(bits).map(str)),
        beyond=beyond.map(str),
        odd=st.sampled_from(odd),
    )


def digits(count: Strategy) -> Strategy:
    """As many digits: nines, a one and noughts, fives, or any."""
    forms = st.sampled_from(
        [
            lambda n: "9" * n,
            lambda n: ("1" + "0" * n)[:n],
            lambda n: "4" * n,
            lambda n: "5" * n,
            lambda n: "0" * n,
            lambda n: ("123456789" * 9)[:n],
            lambda n: ("0" * n + "5")[-n:] if n else "",
        ]
    )
    return st.tuples(count, forms).map(lambda pair: pair[1](pair[0]))  # fmt: skip


@lru_cache(maxsize=2048)
def spelled_decimals(precision: int, scale: int) -> Strategy:
    whole = precision - scale
    near = st.sampled_from([n for n in (whole - 1, whole, whole + 1, 1, 0, 19, 20, 21, 38, 39, 40) if n >= 0])
    parts = st.sampled_from([n for n in (scale - 1, scale, scale + 1, 0, 1, 18, 38, 39, 60) if n >= 0])
    plain = st.builds(
        lambda sign, left, right, dot: f"{sign}{left}{'.' if right or dot else ''}{right}",
        st.sampled_from(["", "", "-", "+"]), digits(near), digits(parts), st.booleans(),
    )  # fmt: skip
    exponents = st.builds(
        lambda base, e, n: f"{base}{e}{n}",
        st.sampled_from(["1", "-1", "1.5", "9.99", "0", "0.00", "123456789", ".1"]), st.sampled_from("eE"),
        st.sampled_from([0, 1, 2, -1, -2, whole - 1, whole, whole + 1, -scale, -scale - 1, 37, 38, 39, 20, 400, -400,
        99999]),
    )  # fmt: skip
    odd = ["", ".", "-", "-.", "1,000", "1,234.5", ",", "NaN", "Inf", "1.2.3", "٣", "１", " 1", "1 ", "1e", "e1", "0x1",
           "-0",
           "-0.0", "1d", "1_0"]  # fmt: skip
    exact = unscaled(precision).map(lambda number: format(scaled(number, scale), "f"))
    return edges("spelled decimal", value=_spoiled(exact), digits=plain, exponent=exponents, odd=st.sampled_from(odd))


@lru_cache(maxsize=2048)
def wrapped(kind: pa.DataType) -> Strategy:
    """Numbers beyond 128 bits that look as if they fitted when higher bits are cut off."""
    times = st.sampled_from([1, -1, 2, -2, 3, 5, 10, -7, 1000])
    places = st.integers(0, kind.scale)  # a parser that counts digits takes few, and shifts them

    def build(n: int, rest: int, fewer: int) -> str:
        number = abs((n << 128) + rest) // 10**fewer
        return ("-" if n < 0 else "") + format(scaled(number, kind.scale - fewer), "f")

    return st.builds(build, times, unscaled(kind.precision), st.one_of(st.just(kind.scale), places))


@lru_cache(maxsize=2048)
def spelled_floats(bits: int) -> Strategy:
    odd = ["NaN", "nan", "Inf", "-Inf", "inf", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF", "-NaN",
           "1e400",
           "-1e400", "1e39", "-1e39", "1e-400", "1e-46", "5e-324", "2.4703282292062327e-324", "1.", ".5", "-.5", ".",
           "-", "",
           "1d", "1.5D", "1f", "0x1p3", "0x10", "1_0", "1,5", "1e", "e5", "1e+5", "1e5.5", "+1", "-0", "-0.0", "0.0",
           "00.5",
           "1e23", "9007199254740993", "0.1", "8.5e-46", "3.4028236e38", "1.7976931348623159e308", "1" * 400, "1e99999",
           "٣.5", "1.0000000596046448", "16777217", "7.0064923216240862e-46"]  # fmt: skip
    return edges(
        f"spelled float of {bits} bits",
        value=_spoiled(floats(bits).map(repr)),
        number=_spoiled(st.integers(-(10**18), 10**18).map(str)),
        digits=st.builds(lambda a, b: f"{a}.{b}", digits(st.integers(1, 20)), digits(st.integers(1, 25))),
        odd=st.sampled_from(odd),
    )


@lru_cache(maxsize=2048)
def spelled_booleans() -> Strategy:
    return edges(
        "spelled boolean",
        value=_spoiled(st.sampled_from(["true", "false"])),
        odd=st.sampled_from(["True", "FALSE", "tRue", "t", "f", "1", "0", "yes", "no", "T", "", "null", "on", "TrUe "]),
    )


# not CET or EET, which are other zones from one tz database to the next
_OFFSETS = ("Z", "z", "+00:00", "-00:00", "+01:00", "+05:30", "-08:00", "+18:00", "-18:00", "+18:01", "+19:00", "+1",
            "+01",
            "+0100", "+1:30", "+01:30:15", "UTC", "GMT", "UTC+1", "GMT+01:00", " Z", " UTC", " Europe/Berlin",
            "Europe/Berlin",
            " +01:00", "PST", "America/New_York", "x", "[Europe/Berlin]", " America/Sao_Paulo")  # fmt: skip


def _clock(wall: datetime, form: str) -> str:
    fraction = f"{wall.microsecond:06}"
    ways = {
        "": "", "T": "T", "h": f"T{wall:%H}", "hm": f" {wall:%H:%M}", "hms": f" {wall:%H:%M:%S}",
        "Thm": f"T{wall:%H:%M}",
        "Thms": f"T{wall:%H:%M:%S}", "f1": f"T{wall:%H:%M:%S}.{fraction[:1]}", "f3": f"T{wall:%H:%M:%S}.{fraction[:3]}",
        "f6": f" {wall:%H:%M:%S}.{fraction}", "f7": f"T{wall:%H:%M:%S}.{fraction}9",
        "f9": f" {wall:%H:%M:%S}.{fraction}999",
        "f12": f"T{wall:%H:%M:%S}.{fraction}123456", "f0": f"T{wall:%H:%M:%S}.",
        "one": f"T{wall.hour}:{wall.minute}:{wall.second}", "24": "T24:00:00", "60": f"T{wall:%H:%M}:60",
        "comma": f"T{wall:%H:%M:%S},{fraction[:3]}",
    }  # fmt: skip
    return ways[form]


_CLOCK_FORMS = ("", "hms", "hms", "Thms", "Thms", "f3", "f6", "f6", "hm", "Thm", "h", "T", "f1", "f7", "f9", "f12",
                "f0", "one",
                "24", "60", "comma")  # fmt: skip


def _day(wall: datetime, form: str) -> str:
    return {
        "iso": f"{wall.year:04}-{wall:%m-%d}", "short": f"{wall.year:04}-{wall.month}-{wall.day}",
        "year": f"{wall.year:04}",
        "month": f"{wall.year:04}-{wall:%m}", "basic": f"{wall.year:04}{wall:%m%d}",
        "slash": f"{wall.year:04}/{wall:%m/%d}",
        "few": f"{wall.year}-{wall:%m-%d}", "many": f"0{wall.year:04}-{wall:%m-%d}",
        "plus": f"+{wall.year:04}-{wall:%m-%d}",
        "minus": f"-{wall.year:04}-{wall:%m-%d}", "ten": f"1{wall.year:04}-{wall:%m-%d}",
    }[form]  # fmt: skip


_DAY_FORMS = ("iso",) * 10 + ("short", "year", "month", "basic", "slash", "few", "many", "plus", "minus", "ten")
_ODD_DAYS = ("2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29", "2023-04-31", "2023-00-10", "2023-13-01",
             "2023-01-00",
             "2023-01-32", "0000-01-01", "0000-12-31", "", "epoch", "now", "today", "0", "1", "-1", "1700000000",
             "1700000000000", "99999-01-01", "1582-10-10", "10000-01-01", "-0001-01-01", "5:00", "T05:00",
             "2023-1-1 1:1:1",
             "２０２３-01-01", "2023-01-01\n", "null", "NaN", "2023-01", "2023-01-01 ", "12/31/2023")  # fmt: skip


@lru_cache(maxsize=2048)
def spelled_times(zone: str, *, day_only: bool, pattern: str | None = None) -> Strategy:
    """Dates and timestamps as text; in the form of a pattern, or as ISO 8601 and Spark have them."""
    wall = walls(zone)
    if day_only:
        days_form = st.builds(_day, wall, st.sampled_from(_DAY_FORMS))
        good = st.builds(
            lambda day, tail: day + tail, days_form, st.sampled_from(["", "", "", " ", "T", "T12:00", " x", "x", "Z"])
        )
    else:
        zones = st.sampled_from(("",) * 12 + _OFFSETS)
        good = st.builds(
            lambda at, day, clock, of: _day(at, day) + _clock(at, clock) + of,
            wall, st.sampled_from(_DAY_FORMS), st.sampled_from(_CLOCK_FORMS), zones,
        )  # fmt: skip
    forms: dict[str, Strategy] = {"value": good, "padded": _spoiled(good), "odd": st.sampled_from(_ODD_DAYS)}
    if pattern is not None:
        own = st.builds(
            lambda at, of: patterned(pattern, at, of), wall, st.sampled_from(["+01:00", "Z", "-08:00", "+05:30"])
        )
        forms["pattern"] = st.one_of(own, own, own, own, _spoiled(own))
        forms["pattern_too"] = own
    return edges("spelled day" if day_only else "spelled time", **forms)


def patterned(pattern: str, wall: datetime, zone: str) -> str:
    """Write a time in a pattern of Java's letters, of those that are allowed here."""
    offset = "+00:00" if zone == "Z" else zone
    fraction = f"{wall.microsecond:06}000"
    parts = {
        "yyyy": f"{wall.year:04}", "uuuu": f"{wall.year:04}", "MM": f"{wall.month:02}", "M": str(wall.month),
        "dd": f"{wall.day:02}", "d": str(wall.day), "HH": f"{wall.hour:02}", "H": str(wall.hour),
        "mm": f"{wall.minute:02}", "m": str(wall.minute), "ss": f"{wall.second:02}", "s": str(wall.second),
        "XXX": zone, "XX": zone.replace(":", ""), "X": zone[:3], "xxx": offset, "xx": offset.replace(":", ""),
        "Z": offset.replace(":", ""),
    }  # fmt: skip

    def write(match: re.Match[str]) -> str:
        token = match.group()
        if token.startswith("'"):
            return token[1:-1].replace("''", "'") or "'"
        if token.startswith("S"):
            return fraction[: len(token)]
        return parts.get(token, token)

    return re.sub(r"'(?:[^']|'')*'|([A-Za-z])\1*", write, pattern.replace("[", "").replace("]", ""))


_ENDS_OF_DAYS = st.sampled_from(["0000-01-01", "0000-12-31", "0001-01-01", "9999-12-31", "10000-01-01", "1582-10-10"])


@lru_cache(maxsize=2048)
def well_spelled(kind: pa.DataType, zone: str, pattern: str | None = None) -> Strategy:
    """Texts as programs write them, which Arrow reads quickly; of decimals also those that do not fit."""
    if pt.is_integer(kind):
        return integers(kind.bit_width).map(str)
    if pt.is_decimal(kind):
        whole, scale = kind.precision - kind.scale, kind.scale
        left = digits(st.sampled_from([max(n, 1) for n in (whole - 1, whole, whole, whole + 1, whole + 2, 1)]))
        right = digits(st.sampled_from([0, min(scale, 1), scale, scale // 2, scale + 1]))
        large = st.builds(lambda a, b: f"{a}.{b}" if b else a, left, right)
        exact = unscaled(kind.precision).map(lambda number: format(scaled(number, kind.scale), "f"))
        return edges("well spelled decimal", exact=exact, digits=large, wrapped=wrapped(kind))
    if pt.is_floating(kind):
        return st.floats(allow_nan=False, allow_infinity=False, width=64 if kind.bit_width == 64 else 32).map(repr)
    if pt.is_boolean(kind):
        return st.sampled_from(["true", "false"])
    if pt.is_temporal(kind) and pattern is not None:
        return walls(zone).map(lambda at: patterned(pattern, at, "+01:00"))
    if pt.is_date(kind):
        return st.one_of(walls(zone).map(lambda at: _day(at, "iso")), _ENDS_OF_DAYS)
    if pt.is_timestamp(kind):
        form = "Z" if kind.tz is not None else ""
        ends = st.sampled_from(["", "", "", form])
        clocks = st.sampled_from(["hms", "Thms", "f3", "f6", "hms"])
        day = st.builds(lambda at, clock: _day(at, "iso") + _clock(at, clock), walls(zone), clocks)
        end_of_days = st.builds(
            lambda at, clock: at + clock, _ENDS_OF_DAYS, st.sampled_from(["", " 00:00:00", "T23:59:59"])
        )
        return st.builds(lambda at, end: at + end, st.one_of(day, day, day, day, end_of_days), ends)
    return st.sampled_from(["x", "a b", "ä", "日本", "it's", "1", "a\\b"])


@lru_cache(maxsize=2048)
def spelled(kind: pa.DataType, zone: str, pattern: str | None = None) -> Strategy:
    """Texts of a type without parts, right and nearly right."""
    if pt.is_integer(kind):
        return spelled_integers(kind.bit_width)
    if pt.is_decimal(kind):
        return spelled_decimals(kind.precision, kind.scale)
    if pt.is_floating(kind):
        return spelled_floats(kind.bit_width)
    if pt.is_boolean(kind):
        return spelled_booleans()
    if pt.is_date(kind):
        return spelled_times(zone, day_only=True, pattern=pattern)
    if pt.is_timestamp(kind):
        return spelled_times(zone, day_only=False, pattern=pattern)
    return texts()


def is_bare(kind: pa.DataType) -> bool:
    """Whether JSON has the type without quotes."""
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind))


def good_text(kind: pa.DataType) -> str:
    """A text of a type that is right under the default options."""
    if pt.is_boolean(kind):
        return "true"
    if pt.is_temporal(kind):
        return "2020-01-02"
    if pt.is_decimal(kind) and kind.precision == kind.scale:
        return "0.1"
    return "1" if not pt.is_string(kind) and not pt.is_binary(kind) else "x"


def arrow_values(kind: pa.DataType, column: Sequence[Any]) -> pa.Array:
    """An array of values as they are drawn here: days and moments are numbers."""
    if pt.is_date(kind):
        return pa.array(column, pa.int32()).cast(kind)
    if pt.is_timestamp(kind):
        return pa.array(column, pa.int64()).cast(kind)
    if pt.is_struct(kind):
        parts = [arrow_values(f.type, [None if v is None else v.get(f.name) for v in column]) for f in kind]
        return pa.StructArray.from_arrays(
            parts, fields=list(kind), mask=pa.array([v is None for v in column], pa.bool_())
        )
    if pt.is_list(kind):
        flat = [item for value in column if value is not None for item in value]
        return pa.ListArray.from_arrays(_offsets(column), arrow_values(kind.value_type, flat)).cast(kind)
    if pt.is_map(kind):
        pairs = [pair for value in column if value is not None for pair in value]
        keys = arrow_values(kind.key_type, [key for key, _ in pairs])
        items = arrow_values(kind.item_type, [item for _, item in pairs])
        return pa.MapArray.from_arrays(_offsets(column), keys, items).cast(kind)
    return pa.array(column, kind)


def _offsets(column: Sequence[Any]) -> pa.Array:
    offsets: list[int | None] = []
    place = 0
    for value in column:
        offsets.append(None if value is None else place)
        place += 0 if value is None else len(value)
    return pa.array([*offsets, place], pa.int32())
