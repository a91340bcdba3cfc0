"""Credentials in a text: by the name they stand under, by the place they stand in, by their shape.

Every pattern takes time that is linear in the text, whatever the text holds: alternatives exclude each other, repeats
are possessive or bounded, and a value that does not end is taken to the end of its line, never looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

MASK = "***"

_TELLING = (
    r"(?:(?:[\w-]{1,40}[-_])?(?:"
    r"(?:api|access|account|auth|client|encryption|private|secret|shared[-_]?access|storage|subscription)[-_]?key|"
    r"token|secret|passwd|password|passphrase|passcode|pwd|credentials?|signature)|"
    r"\w{0,20}(?:apikey|token|secret|password|signature)|"
    r"(?:admin|db|database|ftp|mail|pg|root|smtp|ssh|user)[-_]?pass|"
    r"(?:proxy-)?authorization|cookie|set-cookie|x-amz-[a-z-]+)"
)
# `key` alone is Google's query parameter; a `sort_key` or `source_key` is no secret. Neither is a `second_pass`.
_NAMES = rf"(?:key|sig|auth|pass|(?-i:[A-Z0-9_]{{1,40}}_PASS)|{_TELLING})"
SECRET_FIELD = re.compile(rf"sig|auth|pass|{_TELLING}", re.IGNORECASE)

# What follows is not itself a name whose secret is still to come, as in "bearer\nX-Api-Key: abc": to take the name for
# the secret would leave the secret standing.
_NO_NAME = r"""(?!:?[\w-]+(?:\s?:\s|\s?=\s?['"(]|\s=|\s?=>))"""

# Directly behind `name=` a colon ends the value, as in "password=abc: refused", unless another such name stands there.
_NO_NAME_BEHIND_EQUALS = rf"""(?!:?{_NAMES}\s?:\s)(?!:?[\w-]+(?:\s?=\s?['"(]|\s=|\s?=>))"""

# A value without quotes behind `name: ` or `name = ` has a digit: "password: field required" is none, and neither is
# "token = get_token()".
_UNQUOTED = rf"{_NO_NAME}(?=[^\s'\",;]*[0-9])[^\s'\",;(){{}}\[\]<>]{{8,}}+(?![(\[])"

_APART = r"(?:[ \t]{1,20}=>?[ \t]{0,20}|=[ \t]{1,20}|=>[ \t]{0,20})"


def _quoted(group: int, closed_by: str = "") -> str:
    """The rest of a quoted text whose quote is that group; one that is not closed goes to the end of the line."""
    return rf"(?:\\.|(?!\{group})[^\\\n])*+(?:\{group}{closed_by}|\\?(?=\n|\Z))"


# The rest of an SQL text whose quote is group 2: a doubled quote does not end it.
_SQL_QUOTED = r"(?:\\.|\2\2|(?!\2)[^\\\n])*+(?:\2|\\?(?=\n|\Z))"


def _cookies(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if "=" in found[2] else found[0]


def _web_token(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else MASK


# What must be in a text, in lower case, for a pattern to have a chance. Most messages have none of it, and looking for
# a word is a hundred times as fast as a pattern.
_SECRET_WORDS = ("key", "token", "secret", "pass", "pwd", "cred", "sig", "auth", "cookie", "x-amz")
# Every name that _NAMES takes ends so, but Amazon's.
_NAME_ENDS = (
    *("key", "token", "secret", "passwd", "password", "passphrase", "passcode", "pwd", "credential", "credentials"),
    *("signature", "sig", "auth", "authorization", "cookie", "pass"),
)
_BEHIND_A_NAME = frozenset({"=", ": "})
_SHAPES = (
    *("a3t", "abia", "acca", "akia", "asia", "akc", "aiza", "gh", "github_pat", "gr1348941", "gl", "sk", "rk", "pk"),
    *("sq0", "-us", "xox", "sg.", "npm_", "hf_", "dapi", "ya29.", "gocspx-", "pypi-", "_v1_", "hv", "bot", ":aa"),
    *("shp", "dckr_pat_", "whsec_", "lin_api_", "sntry", "atatt"),
)


class LazyPattern:
    """A regular expression that is compiled when it is first needed: all of them take 15 ms at every start."""

    def __init__(self, source: str, flags: int = 0) -> None:
        self._source, self._flags = source, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, ready for use."""
        return re.compile(self._source, self._flags)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Return the text with what matches replaced."""
        return self.compiled.sub(replacement, text)


_PATTERNS: tuple[
    tuple[tuple[tuple[str, ...], ...], LazyPattern, str | Callable[[re.Match[str]], str]],
    ...,
] = (
    # -----BEGIN PRIVATE KEY----- …
    (
        (("private key",),),
        LazyPattern(
            r"(-{4,5} ?BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-{4,5}+)"
            r"(?! \*\*\*)"  # nothing is left of one that was masked before
            r".*?(?:-{4,5} ?END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-{4,5}|\Z)",
            re.DOTALL,
        ),
        rf"\1 {MASK}",
    ),
    # Private-Lines: 14 …, in a key file of PuTTY
    (
        (("private-lines",),),
        LazyPattern(r"(Private-Lines:[ \t]?[0-9]{1,4})\s+[A-Za-z0-9+/=][A-Za-z0-9+/=\s]*+", re.IGNORECASE),
        rf"\1 {MASK}",
    ),
    # Addresses that are secrets themselves: of Slack, Discord, Teams and SoftLayer
    (
        (("/services/t", "webhook", "/soap/v3"),),
        LazyPattern(
            r"(/services/(?=T\w+/B\w+/)|/api/webhooks/(?=\d+/)|/webhookb2/|office\.com/webhook/"
            r"|/soap/v3(?:.1)?/(?=[a-z0-9]{64}))[\w./@-]{5,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # curl -u user:abc
    (
        (("curl",), (" -u", "-user")),
        LazyPattern(
            r"""(\bcurl\b[^\n]{0,300}?\s(?:-u|--(?:proxy-)?user)[ =]?['"]?[^\s:'"]{1,100}:)[^\s'"]+""", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
    # Proxy-Authorization: Digest username="bob", …, response="abc"
    (
        (("digest",), ("=",)),
        LazyPattern(
            r"\b(digest[ \t]{1,20})(?=(?:username|realm|nonce|uri|qop|nc|cnonce|response|opaque|algorithm)=)[^\r\n]++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # scheme://user:password@host, where the user may be one of Azure's, user@server; and scheme://token@host
    (
        (("://",), ("@",)),
        LazyPattern(r"\b([a-z][a-z0-9+.-]{0,30}://[^\s/:'\"]{0,200}):[^\s/'\"]{1,500}@", re.IGNORECASE),
        rf"\1:{MASK}@",
    ),
    # scheme://user:pass/word@host, scheme://user:p@ss/word@host, which are not encoded. Digits and a slash are a port.
    (
        (("://",), ("@",)),
        LazyPattern(
            r"\b([a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]{0,200}):(?![0-9]{0,5}[/?#])"
            r"[^\s@'\"]{1,500}@(?:[^\s@'\"?=&,]{1,500}@)*+",
            re.IGNORECASE,
        ),
        rf"\1:{MASK}@",
    ),
    # //user:password@host, and postgresql:/user:password@host, which lacks a slash
    (
        (("/",), ("@",), (":",)),
        LazyPattern(
            r"(?<![\w/:.@-])((?:[a-z][a-z0-9+]{0,30}:/|//)[^\s/:@'\"]{0,100}:)(?:[^\s/@'\"]{1,200}@)++", re.IGNORECASE
        ),
        rf"\1{MASK}@",
    ),
    # user:password@host:5432/database; without the path, it may be "mail:bob@example.com"
    (
        (("@",), (":",), ("/",)),
        LazyPattern(
            r"(?<![\w/:.@+-])(?!mailto:|sips?:)([a-z_][\w.+-]{0,60}:)[^\s/:@'\"]{1,200}@"
            r"(?=[a-z0-9][\w.-]{0,100}(?::[0-9]{1,5})?/\w)",
            re.IGNORECASE,
        ),
        rf"\1{MASK}@",
    ),
    (
        (("://",), ("@",)),
        LazyPattern(r"\b([a-z][a-z0-9+.-]{0,30}://)[^\s/:@'\"]{16,500}@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    # ALTER ROLE bob PASSWORD $$abc$$, $tag$abc$tag$
    (
        (("pass", "pwd", "secret"), ("$",)),
        LazyPattern(
            r"(?<![\w-])((?:(?:\w{1,20}_)?(?:password|passwd|passphrase|passcode|pwd)|(?-i:SECRET))"
            r"(?:\s{1,5}(?:is|was)\s{1,5}|\s{0,5}=\s{0,5}|\s{1,5}))(\$(?:[a-z_]\w{0,62})?\$)"
            r"(?:(?!\2)[^\n])*+(?:\2|(?=\n|\Z))",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # ALTER ROLE bob PASSWORD 'abc', IDENTIFIED BY 'abc', wrong password 'abc', password is 'abc', PASSWORD = N'abc';
    # "identified by 'id'" is part of a sentence
    (
        (("pass", "pwd", "identified", "secret"), ("'", '"')),
        LazyPattern(
            r"(?<![\w-])((?:(?:\w{1,20}_)?(?:password|passwd|passphrase|passcode|pwd)|(?-i:SECRET)"
            r"|(?:(?-i:IDENTIFIED)|identified(?=[^'\"\n]{1,60}['\"][^'\"\n]{6}))(?:\s{1,5}with\s{1,5}\w{1,40})?\s{1,5}by)"
            r"(?:\s{1,5}(?:is|was)\s{1,5}|\s{0,5}=\s{0,5}|\s{1,5})(?:[en]|u&)?)"
            rf"""(['"])(?!\2(?!\2)){_SQL_QUOTED}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # SET PASSWORD FOR 'bob'@'%' = 'abc', and PASSWORD('abc') as its value
    (
        (("password",), ("'", '"')),
        LazyPattern(
            r"(?<![\w-])((?:set\s{1,5}password\s{1,5}for\s{1,5}[^=\n]{1,200}+=\s{0,5}"
            rf"""|(?:old_)?password\s{{0,2}}\(\s{{0,2}}))(['"])(?!\2(?!\2)){_SQL_QUOTED}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # create user bob identified by 'abc', IDENTIFIED WITH 'plugin' AS 'abc', IDENTIFIED VIA plugin USING 'abc'
    (
        (("identified",), ("'", '"')),
        LazyPattern(
            r"(?<![\w-])((?:(?-i:IDENTIFIED)|user\s{1,5}[^\n]{1,150}?\sidentified)\s{1,5}"
            r"(?:by(?:\s{1,5}values)?|(?:with|via)\s{1,5}['\"]?\w{1,40}['\"]?\s{1,5}(?:by|as|using))\s{1,5})"
            rf"""(['"])(?!\2(?!\2)){_SQL_QUOTED}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # CREATE USER bob IDENTIFIED BY abc, as Oracle has it
    (
        (("identified",),),
        LazyPattern(
            r"(?<![\w-])((?:(?-i:IDENTIFIED)|user\s{1,5}[^\n]{1,150}?\sidentified)\s{1,5}by\s{1,5})"
            r"(?!(?:password|random|values)\b)[^\s'\";,*]++",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # IDENTIFIED BY '***' REPLACE 'abc', the password until now
    (
        (("replace",), ("'", '"')),
        LazyPattern(rf"""(\*{{3}}['"]\s{{1,5}}replace\s{{1,5}})(['"]){_SQL_QUOTED}""", re.IGNORECASE),
        rf"\1\2{MASK}\2",
    ),
    # PWD={a;b}, as ODBC quotes: }} stands for a brace
    (
        (("=",), _SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({_NAMES}\s?=\s?)\{{(?:\}}\}}|[^}}\n])++(?:\}}|(?=\n|\Z))", re.IGNORECASE),
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
        LazyPattern(rf"\b(bearer|basic|digest|apikey)\s+{_NO_NAME}[A-Za-z0-9._~+/=:-]{{4,}}", re.IGNORECASE),
        rf"\1 {MASK}",
    ),
    # jdbc:oracle:thin:user/password@host
    (
        (("jdbc:oracle:",), ("@",)),
        LazyPattern(r"(jdbc:oracle:\w{1,10}:[^\s/:@'\"]{1,100}/)[^\s@'\"]{1,200}@", re.IGNORECASE),
        rf"\1{MASK}@",
    ),
    # auth=("etl", "abc")
    ((("auth",), ("=",), ("(",)), LazyPattern(r"(?<![\w-])(auth\s?=\s?)\([^()]*\)", re.IGNORECASE), rf"\1{MASK}"),
    # aws key: "abc"
    (
        (("aws",), ("'", '"')),
        LazyPattern(r"""(\baws[^\n'"]{0,40}+['"])[0-9a-z/+]{40}(?=['"])""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # password='a b', password="a b", password => 'a b'
    (
        (("=",), _SECRET_WORDS),
        LazyPattern(rf"""(?<![\w-])({_NAMES}\s?=>?\s?)(['"]){_quoted(2)}""", re.IGNORECASE),
        rf"\1\2{MASK}\2",
    ),
    # ?api_key=abc&…, password=abc (also libpq keyword strings)
    (
        (("=",), _SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({_NAMES})=(?!>){_NO_NAME_BEHIND_EQUALS}[^\s&'\",;]+", re.IGNORECASE),
        rf"\1={MASK}",
    ),
    # password = abc123, password => abc123, as in INI files
    (
        (("=",), _SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({_TELLING}{_APART}){_UNQUOTED}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # "api_key": "abc", also where the JSON is itself inside a JSON string; "api_key" => "abc"; it["api_key"] = "abc"
    (
        ((":", "="), ('"', "'"), _SECRET_WORDS),
        LazyPattern(
            rf"""((\\?["']){_NAMES}\2\]?\s*(?::=?|=>?)\s*)(\\?["'])(?:(?!\3)(?:\\.|[^\\]))*+(?:\3|\\?\Z)""",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\3{MASK}\3",
    ),
    # private_key: 'abc'; a short one may be part of a sentence, "unexpected token: '}'"
    (
        ((": ",), ('"', "'"), _SECRET_WORDS),
        LazyPattern(
            rf"""(?<![\w-])({_TELLING}\s?: +)(['"])(?=(?:(?!\2)[^\n]){{6}}){_quoted(2)}""",
            re.IGNORECASE,
        ),
        rf"\1\2{MASK}\2",
    ),
    # (b"X-Api-Key", b"abc"), as headers are kept
    (
        (("(",), ("'", '"'), _SECRET_WORDS),
        LazyPattern(rf"""(\(b?(['"]){_NAMES}\2,\s?b?)(['"]){_quoted(3, "(?=[)])")}""", re.IGNORECASE),
        rf"\1\3{MASK}\3",
    ),
    # <password>abc</password>
    (
        (("</",), _SECRET_WORDS),
        LazyPattern(rf"(<(?:\w{{1,20}}:)?{_TELLING}(?:\s[^<>]{{0,200}})?>)[^<]++(?=</)", re.IGNORECASE),
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
            rf"{_NO_NAME}(?=[^\s'\"]{{16}}|[^\s'\"]*[0-9])[^\s'\"{{\[,;]{{8,}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # X-Api-Key: abc, as a line of headers
    (
        ((":",), ("key", "token")),
        LazyPattern(
            rf"(?<![\w-])((?:x-)?api-?key|x-[a-z-]{{0,30}}token)(\s*:[ \t]*){_NO_NAME}[^\s'\"{{\[]{{8,}}", re.IGNORECASE
        ),
        rf"\1\2{MASK}",
    ),
    # password: abc123, also a header of any other name
    (
        ((": ",), _SECRET_WORDS),
        LazyPattern(rf"(?<![\w-])({_TELLING}\s?: +){_UNQUOTED}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # --password abc
    (
        (("--",), _SECRET_WORDS),
        LazyPattern(rf"""(?<![\w-])(--{_TELLING}\s+)(?:'[^']*'|"[^"]*"|[^\s'"]+)""", re.IGNORECASE),
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
            r"|hf_[A-Za-z0-9]{30,}|dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{40,}|hv[sbr]\.[\w-]{20,}"
            r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{30,}|sntry[su]_[\w+/=]{30,}|ATATT3[\w=-]{20,}"
            r"|bot[0-9]{6,12}:[\w-]{30,}|[0-9]{8,10}:AA[\w-]{33})"  # Telegram, in a URL and alone
        ),
        MASK,
    ),
)


# Most messages have none of all this.
_ANY = (
    *_SECRET_WORDS,
    *("private-lines", "/soap/v3", "aws", "bearer", "basic", "digest", "://", "/services/t", "webhook", "eyj"),
    *("oracle", "curl", "@", "identified", *_SHAPES),
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
        return text
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
    return text


def _names_a_secret(lowered: str, mark: str) -> bool:
    """Whether this mark stands somewhere behind what may be a secret's name."""
    before = lowered.split(mark)[:-1]
    return any(part.rstrip().endswith(_NAME_ENDS) or "x-amz-" in part for part in before)
