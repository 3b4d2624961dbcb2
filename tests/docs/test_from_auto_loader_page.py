"""The page for users of Auto Loader: each name that it has for an option is taken, or refused with what to set."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_source.errors import OptionError
from queue_source.options.places import MEANINGLESS, READER, given_texts
from support.snippets import ROOT

PAGE = (ROOT / "docs" / "how-to" / "from-auto-loader.md").read_text("utf-8")
_UNWRAPPED = PAGE.replace("\n  ", " ")
LIST = Path(__file__).with_name("auto_loader_options.md").read_text("utf-8")


def _names() -> Iterator[tuple[str, list[str]]]:
    """Each name with `cloudFiles.`, and the options that stand beside it."""
    for left, right in re.findall(r"^- (`cloudFiles\..+?): (.+)$", _UNWRAPPED, re.MULTILINE):
        for name in re.findall(r"`(?:cloudFiles\.)?([\w.]+)`", left):
            yield f"cloudFiles.{name}", [name] if "the same" in right else re.findall(r"`([\w.]+)`", right)


@pytest.mark.parametrize(("name", "options"), [one for one in _names() if one[0] not in MEANINGLESS])
def test_a_name_of_auto_loader_is_taken_or_refused_with_the_option_that_the_page_shows(
    name: str, options: list[str]
) -> None:
    assert _taken_or_refused(name)[:1] == options[:1] or options[0] in _taken_or_refused(name)[0]


def _taken_or_refused(name: str) -> list[str]:
    """The option that is meant, or what the refusal says."""
    try:
        return list(given_texts(READER, {name: "env:NAME" if "connection" in name else "x"}))
    except OptionError as error:
        return [error.problem.partition("is unknown")[0]]


def test_the_page_has_names_enough() -> None:
    assert len(list(_names())) > 15


COMMON = """
    allowOverwrites backfillInterval cleanSource cleanSource.retentionDuration cleanSource.moveDestination format
    includeExistingFiles inferColumnTypes maxBytesPerTrigger maxFileAge maxFilesPerTrigger partitionColumns
    schemaEvolutionMode schemaHints schemaLocation useStrictGlobber validateOptions useIncrementalListing
    fetchParallelism pathRewrites resourceTag.team useNotifications useManagedFileEvents listOnStart
    region restrictNotificationSetupToSameAWSAccountId queueUrl awsAccessKey awsSecretKey roleArn roleExternalId
    roleSessionName stsEndpoint
    resourceGroup subscriptionId clientId clientSecret connectionString tenantId queueName
    client clientEmail privateKey privateKeyId projectId subscription
"""
OF_FORMATS = """
    databricks.serviceCredential
    ignoreCorruptFiles ignoreMissingFiles modifiedAfter modifiedBefore pathGlobFilter fileNamePattern
    recursiveFileLookup
    allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros allowSingleQuotes
    allowUnquotedControlChars allowUnquotedFieldNames badRecordsPath columnNameOfCorruptRecord dateFormat
    dropFieldIfAllNull encoding charset inferTimestamp lineSep locale mode multiLine prefersDecimal primitivesAsString
    readerCaseSensitive rescuedDataColumn singleVariantColumn timestampFormat timestampNTZFormat timeZone
    charToEscapeQuoteEscaping comment emptyValue enforceSchema escape header ignoreLeadingWhiteSpace
    ignoreTrailingWhiteSpace inferSchema maxCharsPerColumn maxColumns mergeSchema nanValue negativeInf nullValue
    parserCaseSensitive positiveInf preferDate quote sep delimiter skipRows unescapedQuoteHandling
    rowTag samplingRatio excludeAttribute attributePrefix valueTag ignoreSurroundingSpaces rowValidationXSDPath
    ignoreNamespace rootTag declaration arrayElementName validateName wildcardColName
    datetimeRebaseMode int96RebaseMode avroSchema wholeText
"""
"""The names of Auto Loader's reference of options that are known to us; `cloudFiles.` is left out."""

ROWS: dict[str, set[str]] = {
    left: set(re.findall(r"`([\w.*]+)`", right)) for left, right in re.findall(r"^\| (\w.*?) \| (`.+) \|$", LIST, re.M)
}


def _row(name: str) -> str:
    """How the page says that the option is dealt with."""
    in_table = "resourceTag.*" if name.startswith("resourceTag") else name
    return next(row for row, names in ROWS.items() if in_table in names)


@pytest.mark.parametrize("name", [*COMMON.split(), *OF_FORMATS.split()])
def test_each_option_of_auto_loader_is_taken_warned_of_or_refused_with_a_hint_as_the_page_says(name: str) -> None:
    written = f"cloudFiles.{name}" if name in COMMON.split() else name
    row = _row(name)
    options = {written: "env:NAME" if any(word in name for word in ("Key", "Secret", "connection")) else "x"}
    if row.startswith("refused"):
        with pytest.raises(OptionError, match="has no equivalent here: "):
            given_texts(READER, options)
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        taken = list(given_texts(READER, options))
    if row.startswith("accepted"):
        assert (taken, len(warned)) == ([], 1)
    else:
        assert not warned
        assert (taken == [name]) == ("with or without" in row)
        assert len(taken) == 1


def test_the_page_lists_no_option_that_auto_loader_has_not() -> None:
    listed = {name.replace("resourceTag.*", "resourceTag.team") for names in ROWS.values() for name in names}
    assert listed == {*COMMON.split(), *OF_FORMATS.split()}
