"""Credentials in a text: by the name they stand under, by the place they stand in, by their shape.

Every pattern takes time that is linear in the text, whatever the text holds: alternatives exclude each other, repeats
are possessive or bounded, and a value that does not end is taken to the end of its line, never looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from redrive._internal.masking.lazy_pattern import MASK, LazyPattern
from redrive._internal.masking.names import NAME_ENDS, NAMES, SECRET_WORDS, TELLING
from redrive._internal.masking.plain_values import is_plain_value
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


# The rest of an SQL text whose quote is group 2: a doubled quote does not end it.
_SQL_QUOTED = r"(?:\\.|\2\2|(?!\2)[^\\\n])*+(?:\2|\\?(?=\n|\Z))"


def _cookies(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if "=" in found[2] else found[0]


def _web_token(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else MASK


def _assigned(found: re.Match[str]) -> str:
    return found[0] if is_plain_value(found[1], found[2]) else f"{found[1]}={MASK}"


_BETWEEN = " \t\r\n:0123456789"  # what may stand between a name and its mark, a number of the name included
_BEHIND_A_NAME = frozenset({"=", ": "})
_SHAPES = (
    *("a3t", "abia", "acca", "akia", "asia", "akc", "aiza", "gh", "github_pat", "gr1348941", "gl", "sk", "rk", "pk"),
    *("sq0", "-us", "xox", "sg.", "npm_", "hf_", "ya29.", "gocspx-", "pypi-", "hv", "bot", ":aa"),
    *("shp", "dckr_pat_", "whsec_", "lin_api_", "sntry", "atatt"),
)


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
            r"(?<![\w/:.@-])((?:[a-z][a-z0-9+]{0,30}:/|(?:[a-z][a-z0-9+]{0,30})?//)[^\s/:@'\"]{0,100}:)(?:[^\s/@'\"]{1,200}@)++",
            re.IGNORECASE,
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
            # "Basic rate missing" is a sentence: the credential is not a short word in small letters
            r"(?!(?<=basic\s)(?-i:[a-z]{1,8})(?![\w.~+/=:-]))[A-Za-z0-9._~+/=:-]{4,}",
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
    # auth=("etl", "abc")
    ((("auth",), ("=",), ("(",)), LazyPattern(r"(?<![\w-])(auth\s?=\s?)\([^()]*\)", re.IGNORECASE), rf"\1{MASK}"),
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
            rf"""(?<![\w-])(?!key\s?=\s?['"]{TELLING}['"])({NAMES}\s?=>?\s?{_WRAPPED})(['"]){_quoted(2)}""",
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
    # "api_key": "abc", also where the JSON is itself inside a JSON string; "api_key" => "abc"; it["api_key"] = "abc"
    (
        ((":", "="), ('"', "'"), SECRET_WORDS),
        LazyPattern(
            rf"""((\\?["']){NAMES}\2\]?\s*(?::=?|=>?)\s*{_WRAPPED})(\\?["'])(?:\\{{3}}['"]|(?!\3)(?:\\.|[^\\]))*+(?:\3|\\?\Z)""",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\3{MASK}\3",
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
    # \\\"password\\\":\\\"abc\\\", JSON within JSON within JSON
    (
        (('\\\\\\"',), SECRET_WORDS),
        LazyPattern(rf'(\\{{3,7}}"{NAMES}\\{{3,7}}"\s?:\s?\\{{3,7}}")(?:(?!\\{{3,7}}")[^\n])++', re.IGNORECASE),
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
    """Whether this mark stands somewhere behind what may be a secret's name."""
    before = lowered.split(mark.strip())[:-1]
    return any(part.rstrip(_BETWEEN).endswith(NAME_ENDS) or "x-amz-" in part for part in before)
