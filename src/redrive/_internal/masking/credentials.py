"""Credentials in a text: by the name they stand under, by the place they stand in, by their shape.

Every pattern takes time that is linear in the text, whatever the text holds: alternatives exclude each other, repeats
are possessive or bounded, and a value that does not end is taken to the end of its line, never looked at again.
"""

from __future__ import annotations

import re
from typing import Final

from redrive._internal.masking.patterns import MASK, NAME_ENDS, NAMES, SECRET_FIELD, SECRET_WORDS, TELLING, LazyPattern
from redrive._internal.masking.places import PLACES, Entry
from redrive._internal.masking.tokens import mask_tokens

# What follows is not itself a name whose secret is still to come, as in "bearer\nX-Api-Key: abc": to take the name for
# the secret would leave the secret standing.
_NO_NAME = rf"""(?!:?(?:[A-Za-z_-]+|{NAMES})\s?:\s)(?!:?[\w-]+(?:\s?=\s?['"(]|\s=|\s?=>))"""

# On the line of `name=` or `name: ` a colon ends the value, as in "password=abc: refused" and "token: abc1: invalid",
# unless another such name stands there.
_NO_SECRET_NAME = rf"""(?!:?{NAMES}\s?:\s)(?!:?[\w-]+(?:\s?=\s?['"(]|\s=|\s?=>))"""

# A value without quotes behind `name: ` or `name = ` has a digit: "password: field required" is none, and neither is
# "token = get_token()", or a parameter of a statement, as in "password = :password_1".
_NO_PARAMETER = rf"(?![:@]{TELLING}(?:_[0-9]{{1,6}})?(?![\w-]))"
_UNQUOTED = rf"{_NO_SECRET_NAME}{_NO_PARAMETER}(?=[^\s'\",;]*[0-9])[^\s'\",;(){{}}\[\]<>]{{8,}}+(?![(\[])"

_APART = r"(?:[ \t]{1,20}=>?[ \t]{0,20}|=[ \t]{1,20}|=>[ \t]{0,20})"


# What may stand before a quoted value: a class that holds it, and the letters of Python's literals.
_WRAPPED = r"(?:[a-z_][\w.]{0,40}\(\s?)?[bru]{0,2}"


def _quoted(group: int, closed_by: str = "") -> str:
    """The rest of a quoted text whose quote is that group; one that is not closed goes to the end of the line."""
    return rf"(?:\\.|(?!\{group})[^\\\n])*+(?:\{group}{closed_by}|\\?(?=\n|\Z))"


# A quotation mark as HTML writes it.
_REFERENCE: Final = r"&(?:amp;){0,9}(?:quot|apos|#0{0,4}(?:34|39)|#x0{0,4}(?:22|27));"


def _cookies(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if "=" in found[2] else found[0]


def _web_token(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else MASK


def _assigned(found: re.Match[str]) -> str:
    if found[2].startswith((f"{MASK})", f"{MASK}]", f"{MASK}}}")):
        return found[0]  # a container was masked; what follows it is something else
    is_plain = is_plain_value(found[1], found[2]) or (
        # What a URL has under the name of a key is one, whatever it looks like.
        found.string[found.start() - 1 : found.start()] not in {"?", "&"} and _is_a_word(found[1], found[2])
    )
    return found[0] if is_plain else f"{found[1]}={MASK}"


_BETWEEN = " \t\r\n:0123456789"  # what may stand between a name and its mark, a number of the name included
_BEHIND_A_NAME = frozenset({"=", ": "})
_SHAPES = (
    *("a3t", "abia", "acca", "akia", "asia", "akc", "aiza", "gh", "github_pat", "gr1348941", "gl", "sk", "rk", "pk"),
    *("sq0", "-us", "xox", "sg.", "npm_", "hf_", "ya29.", "gocspx-", "pypi-", "hv", "bot", ":aa"),
    *("shp", "dckr_pat_", "whsec_", "lin_api_", "sntry", "atatt"),
)


_PATTERNS: tuple[Entry, ...] = (
    *PLACES,
    # PWD={a;b}, as ODBC quotes: }} stands for a brace
    (
        (("=",), SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({NAMES}\s?=\s?)\{{(?:\}}\}}|[^}}\n])++(?:\}}|(?=\n|\Z))", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # openssl … -passin pass:abc
    (
        (("pass:",),),
        LazyPattern(r"(?<![\w-])(-pass(?:in|out)?\s{1,5}pass:)[^\s'\"]++"),
        rf"\1{MASK}",
    ),
    # Authorization: Bearer abc / Basic abc
    (
        (("bearer", "basic", "digest", "apikey"),),
        LazyPattern(
            # "channels.hub.bearer names the variable …" is a sentence of ours
            rf"\b(bearer|basic|digest|apikey)\s+(?!(?:names|must)\s){_NO_NAME}"
            # "Basic rate missing" and "bearer token expired" are sentences: a credential is not a short word
            r"(?!(?<!apikey\s)(?-i:[a-z]{1,8}|authentication)(?![\w.~+/=:-]))[A-Za-z0-9._~+/=:-]{4,}",
            re.IGNORECASE,
        ),
        rf"\1 {MASK}",
    ),
    # jdbc:oracle:thin:user/password@host
    (
        (("jdbc:oracle:",), ("@",)),
        LazyPattern(r"(jdbc:oracle:\w{1,10}:[^\s/:@'\"]{1,100}/)[^\s@'\"]{1,200}@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    # aws key: "abc"
    (
        (("aws",), ("'", '"')),
        LazyPattern(r"""(\baws[^\n'"]{0,40}+['"])[0-9a-z/+]{40}(?=['"])""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # <add key="Password" value="abc"/>, also with more attributes between
    (
        (("value",), ("=",), ("key", "name", "id", "property")),
        LazyPattern(
            rf"""(\b(?:key|name|id|property)\s?=\s?(\\?['"])(?:[\w.-]{{0,60}}[.:])?{TELLING}\2(?:\s[^<>]{{0,100}}?)?\s"""
            rf"""value\s?=\s?)(\\?['"])(?:(?!\3)[^<>\n])*+(?:\3|(?=[<>\n]|\Z))""",
            re.IGNORECASE,
        ),
        rf"\1\3{MASK}\3",
    ),
    # Invalid header value b'abc\r\n'; … return character(s) in header value: 'abc\n'
    (
        (("header value",),),
        LazyPattern(r"""(header value:?\s{1,3}b?)(['"])(?:\\.|(?!\2)[^\\\n])*+(?:\2|\\?(?=\n|\Z))""", re.IGNORECASE),
        rf"\1\2{MASK}\2",
    ),
    # password='a b', password="a b", password => 'a b', password=b'a b', password=SecretStr('a b')
    (
        (("=",), SECRET_WORDS),
        LazyPattern(
            rf"""(?<![\w-])(?!key\s?=\s?['"]{TELLING}['"])({NAMES}\s?(?:=>?|:=)\s?{_WRAPPED})(['"]){_quoted(2)}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # ?api_key=abc&…, password=abc (also libpq keyword strings)
    (
        (("=",), SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({NAMES})=(?!>){_NO_SECRET_NAME}([^\s&'\",;]+)", re.IGNORECASE),
        _assigned,
    ),
    # password = abc123, password => abc123, as in INI files
    (
        (("=",), SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({TELLING}{_APART}){_UNQUOTED}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # private_key: 'abc'; a short one may be part of a sentence, "unexpected token: '}'"
    (
        ((": ", ":\t"), ('"', "'"), SECRET_WORDS),
        LazyPattern(
            rf"""(?<![\w-])({TELLING}\s?:[ \t]+)(['"])(?=(?:(?!\2)[^\n]){{6}}){_quoted(2)}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # (b"X-Api-Key", b"abc"), as headers are kept
    (
        (("(",), ("'", '"'), SECRET_WORDS),
        LazyPattern(rf"""(\(b?(['"]){NAMES}\2,\s?b?)(['"]){_quoted(3, "(?=[)])")}""", re.IGNORECASE),
        rf"\1\3{MASK}\3",
    ),
    # <password>abc</password>
    (
        (("</",), SECRET_WORDS),
        LazyPattern(rf"(<(?:\w{{1,20}}:)?{TELLING}(?:\s[^<>]{{0,200}})?>)[^<]++(?=</)", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # <password><![CDATA[abc]]></password>, &lt;password&gt;abc&lt;/password&gt;
    (
        (("<![cdata[", "&gt;"), SECRET_WORDS),
        LazyPattern(
            rf"((?:<|&lt;)(?:\w{{1,20}}:)?{TELLING}(?:>\s{{0,5}}<!\[CDATA\[|&gt;))(?:(?!\]\]>|&lt;/)[^<\n])++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # <td>password</td><td>abc</td>, <dt>password:</dt><dd>abc</dd>, <b>api_key</b> <code>abc</code>
    (
        (("</",), SECRET_WORDS),
        LazyPattern(
            rf"(<(td|th|dt|li|b|strong|label|span|div|p)(?:\s[^<>]{{0,200}})?>\s{{0,20}}{TELLING}\s?:?\s{{0,20}}</\2>\s{{0,20}}"
            r"(?:<(?!th\b)[a-z]{1,10}(?:\s[^<>]{0,200})?>\s{0,20}){1,3})[^<\s][^<]*+(?=<|\Z)",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # &quot;password&quot;: &quot;abc&quot;, JSON within HTML
    (
        (("&",), (";",), SECRET_WORDS),
        LazyPattern(
            rf"((?<!\\)(\\*{_REFERENCE}){NAMES}\2\s?[:=]\s?[bu]?(\\*{_REFERENCE}))"
            rf"(?!\3)(?:(?!\3)(?:\\++(?:{_REFERENCE})?|[^\\\n]))++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # on field 'password': rejected value [abc]; as Spring has it
    (
        (("rejected value [",), SECRET_WORDS),
        LazyPattern(
            rf"(field '(?:[\w.\[\]]{{1,100}}\.)?{TELLING}': rejected value \[)(?:(?!\];|\](?=\s|\Z))[^\n])++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # configparser: option 'password' in section 'db' …. Raw value: 'abc%(x)s'
    (
        (("raw value: ",), SECRET_WORDS),
        LazyPattern(rf"(option \\?['\"]{TELLING}\\?['\"] [^\n]{{1,500}}? raw value: )[^\n]++", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # configparser: 'password abc\n', a line of the file
    (
        (("\\n",), ("'", '"'), SECRET_WORDS),
        LazyPattern(
            rf"((?<![\w,])\\?['\"]{TELLING}(?:[ \t]{{1,20}}|\s{{0,5}}[:=]\s{{0,5}}))"
            rf"(?![ \t=:])[^\s'\"][^\n'\"]*?(?=(?:\\{{1,4}}n)\\?['\"])",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # parameter MasterUserPassword, value: ['abc'], type: <class 'list'>
    (
        (("parameter ",), ("value: ",), SECRET_WORDS),
        LazyPattern(
            rf"(\bparameter (?:[\w.\[\]]{{0,100}}\.)?{TELLING}, value: )(?:(?!, type: )[^\n])++", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
    # Parts of an address that is not well formed, which may be of a password with "#", "/" or a space:
    # Failed to parse: 'etl:abc' is not a valid host or port, URL can't contain control characters. 'etl:a c@host'
    (
        (("failed to parse: ", "control characters. "), (":",)),
        LazyPattern(
            r"""((?:failed to parse:|control characters\.) (['"])[^\s:'"/]{0,200}:)(?![0-9]{0,5}\2)(?:(?!\2)[^\n])++""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # nonnumeric port: 'abcd', could not be cast to integer value as 'abcd', unexpected spaces found in "a bc"
    (
        (("port: ", "integer value ", "spaces found in ", "percent-encoded ", 'missing "=" after '), ("'", '"')),
        LazyPattern(
            r"((?:(?:invalid|nonnumeric) port:|cast to integer value as|unexpected spaces found in"
            r"|invalid integer value(?= \"[^\"\n]{1,500}\" for connection option \"port\")"
            r"|percent-encoded (?:token|value):|missing \"=\" after) )"
            r"""(['"])(?![0-9]{1,20}\2)(?=(?:(?!\2)[^\n]){4})(?:(?!\2(?:[\s,;)]|\Z))[^\n])++""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
    # failed to resolve host 'rd@127.0.0.1', nonnumeric port: 'abc@host': the rest of a password that was not encoded
    (
        (("resolve host '", "port: '"), ("@",)),
        LazyPattern(r"((?:resolve host|nonnumeric port:) ')[^\n@]{1,500}+@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    # SplitResult(scheme='sftp', netloc='user:abc@host', …)
    (
        (("netloc=",), ("@",)),
        LazyPattern(r"""(\bnetloc=b?['"][^:'"\n]{0,200}:)[^'"\n@]{1,500}+@"""),
        rf"\1{MASK}@",
    ),
    # HTTPBasicAuth('user', 'abc'), auth: ['user', 'abc']
    (
        (("auth",), ("'", '"')),
        LazyPattern(
            r"""((?:auth\(|(?<![\w-])auth['"]?: ?[\[(])(['"])[^'"\n]{0,200}\2, ?)(['"])(?:\\.|(?!\3)[^\\\n])*+"""
            r"""(?:\3|\\?(?=\n|\Z))""",
            re.IGNORECASE,
        ),
        rf"\1\3{MASK}\3",
    ),
    # password\u003dabc, password := abc
    (
        (("\\u003d", ":="), SECRET_WORDS),
        LazyPattern(
            rf"(?<![\w-])({TELLING}(?:\\u003d|[ \t]{{0,5}}:=[ \t]{{1,5}}))(?!['\"])[^\s&'\",;\\]+", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
    # password%22%3A%22abc%22
    (
        (("%22%3a",), SECRET_WORDS),
        LazyPattern(
            rf"(%22{NAMES}%22%3A(?:%20|\+)?%22|(?<![\w-]){NAMES}%22%3A(?:%20|\+)?%22)(?:(?!%22)[^\s&'\"])++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # Cookie: theme=dark; session=abc
    (
        ((":",), ("cookie",)),
        LazyPattern(r"(?<![\w-])((?:set-)?cookie\s*+:[ \t]*+)([^\r\n'\"]*+)", re.IGNORECASE),
        _cookies,
    ),
    # Authorization: Token abc
    (
        ((":",), ("authorization",)),
        LazyPattern(
            r"(?<!\w)(authorization\s*:[ \t]*)(?:[a-z][\w-]{0,20}[ \t]+)?"
            rf"{_NO_SECRET_NAME}(?=[^\s'\"]{{16}}|[^\s'\"]*[0-9])[^\s'\"{{\[,;]{{8,}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # X-Api-Key: abc, as a line of headers
    (
        ((":",), ("key", "token")),
        LazyPattern(
            rf"(?<![\w-])((?:x-)?api-?key|x-[a-z-]{{0,30}}token)(\s*:[ \t]*){_NO_SECRET_NAME}[^\s'\"{{\[]{{8,}}",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}",
    ),
    # password: abc123, also a header of any other name
    (
        ((": ", ":\t"), SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({TELLING}\s?:[ \t]+){_UNQUOTED}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # --password abc
    (
        (("--",), SECRET_WORDS),
        LazyPattern(rf"""(?<![\w-])(--{TELLING}\s+)(?:'[^']*'|"[^"]*"|[^\s'"]+)""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # PagerDuty's routing key; RabbitMQ has one, too, which is no secret and looks different
    (
        (("key",), ("routing", "integration")),
        LazyPattern(
            r"""\b((?:routing|integration)[-_ ]?key(?:\\?["'])?\s?[:=]\s?(?:\\?["'])?)[0-9a-z]{32}\b""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # A JSON Web Token has three parts, unless the end of the text has cut it. What begins like one is taken whole, so
    # that nothing of it is looked at again.
    (
        (("eyj",),),
        LazyPattern(r"\beyJ[\w-]{8,}+(\.[\w-]{8,}+(?:\.[\w-]*+|\Z))?"),
        _web_token,
    ),
    # Tokens that show by their shape what they are.
    (
        (_SHAPES,),
        LazyPattern(
            r"\b(?:(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}|AKC[A-Za-z0-9]{10,}"  # Amazon, Artifactory
            r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"  # Google
            r"|gh[pousr]_\w{20,}|github_pat_\w{20,}"
            r"|gl(?:pat|ptt|rt|dt|ft|imt|soat|oas|agent|cbt)-[\w-]{20,}|GR1348941[\w-]{20,}"
            r"|(?:sk|rk|pk)[-_][\w-]{16,}|whsec_[\w+/=]{24,}"
            r"|(?i:xox)[abeoprsABEOPRS]-[\w-]{10,}"
            r"|sq0[a-z]{3}-[\w-]{20,}|SK[0-9a-z]{32}|[0-9a-z]{32}-us[0-9]{1,2}\b"  # Square, Twilio, Mailchimp
            r"|SG\.[\w-]{16,64}\.[\w-]{16,}"  # SendGrid
            r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dckr_pat_[\w-]{20,}"
            r"|hf_[A-Za-z0-9]{30,}|hv[sbr]\.[\w-]{20,}"
            r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{30,}|sntry[su]_[\w+/=]{30,}|ATATT3[\w=-]{20,}"
            r"|bot[0-9]{6,12}:[\w-]{30,}|[0-9]{8,10}:AA[\w-]{33})"  # Telegram, in a URL and alone
        ),
        MASK,
    ),
)


# Most messages have none of all this.
_ANY = (
    *SECRET_WORDS,
    *("private-lines", "/soap/v3", "aws", "bearer", "basic", "digest", "://", "/services/t", "webhook", "eyj"),
    *("failed to parse: ", "port: ", "integer value ", "spaces found in ", "percent-encoded ", 'missing "=" after '),
    *("oracle", "curl", "@", "identified", "header value", "netloc=", *_SHAPES),
)


def mask_credentials(text: str) -> str:
    """The text without what looks like a credential."""
    lowered = text.lower()
    if not text.isascii():
        lowered = lowered.replace("ſ", "s").replace("ı", "i")  # as a pattern that ignores case has it
    for word in _ANY:
        if word in lowered:
            break
    else:
        return mask_tokens(text, lowered)
    for needs, pattern, replacement in _PATTERNS:
        for words in needs:
            for word in words:  # a generator for any() would cost more than the search
                if word in lowered:
                    break
            else:
                break
        else:
            mark = needs[0][0]
            if mark not in _BEHIND_A_NAME or _names_a_secret(lowered, mark):
                text = pattern.sub(replacement, text)
    return mask_tokens(text, lowered)


def _names_a_secret(lowered: str, mark: str) -> bool:
    """Return whether this mark stands somewhere behind what may be a secret's name."""
    before = lowered.split(mark.strip())[:-1]
    return any(part.rstrip(_BETWEEN).endswith(NAME_ENDS) or "x-amz-" in part for part in before)


# ── values that are no secrets, though they stand under the name of one: `key=7/part-1.parquet`, `password=?` ────────

_NOTHING: Final = frozenset({"true", "false", "none", "null"})
_PLACEHOLDER: Final = re.compile(
    r"(?:\?|%s|%\(\w{1,100}\)s|\$[0-9]{1,4}|[:@](?P<name>\w{1,100}?)(?:_[0-9]{1,6})?)[)\]]{0,9}"
)

# `key` names the column of a partition, `…/key=7/part-0001.parquet`, and an object, `Key=in/2026/a.csv`.
_OBJECT: Final = re.compile(
    r"[0-9]{1,5}(?:[/\\].*)?|[\w.=-]{1,100}(?:[/\\][\w.=-]{1,100}){1,30}\.[a-z][a-z0-9]{1,9}[.:)\]]{0,3}"
)

# Under these names stand counts and words, too: `token=3 of 10`, `otp=expired`, `key=customer_id not found`.
_AMBIGUOUS: Final = frozenset({"token", "pin", "pass", "sig", "key", "otp"})
_COUNT: Final = re.compile(r"[0-9]{1,3}[.)\]]?")
_WORD: Final = re.compile(r"(?=.{1,11}[.:)\]]?\Z)(?:[a-z]+(?:_[a-z]+)*|[A-Z]+(?:_[A-Z]+)*)[.:)\]]?")
_RESULT: Final = re.compile(r"(?:ok|yes|no|failed|passed|skipped|expired)[.:)\]]?")
_CALL: Final = re.compile(r"[a-z_][\w.]{0,100}\(\)", re.IGNORECASE)

_WORKING_DIRECTORY: Final = frozenset({"PWD", "OLDPWD", "pwd"})
_PATH: Final = re.compile(r"/(?:app|data|etc|home|mnt|opt|root|run|srv|tmp|usr|var|work|workspace|Users)(?:/[\w./-]*)?")

_LONGEST: Final = 500  # characters of a value that may be plain


def is_plain_value(name: str, value: str) -> bool:
    """Return whether the value of `name=value` shows nothing."""
    if len(value) > _LONGEST:
        return False
    if value.lower() in _NOTHING:
        return True
    if placeholder := _PLACEHOLDER.fullmatch(value):
        of = placeholder["name"]
        return of is None or of == name or SECRET_FIELD.fullmatch(of) is not None
    if _CALL.fullmatch(value):
        return True
    if name in _WORKING_DIRECTORY:
        return _PATH.fullmatch(value) is not None
    return name.lower() == "key" and _OBJECT.fullmatch(value) is not None


def _is_a_word(name: str, value: str) -> bool:
    """Return whether a value is a count or a word, under a name that stands for more than secrets."""
    if name not in _AMBIGUOUS:
        return False
    return _COUNT.fullmatch(value) is not None or (_RESULT if name == "pass" else _WORD).fullmatch(value) is not None
