"""Credentials that are known by the place they stand in: key files, webhooks, URLs and SQL statements.

Each entry has what a text must contain, in lower case (one entry of each group), the pattern, and what replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from redrive._internal.masking.patterns import MASK, TELLING, LazyPattern

Entry = tuple[tuple[tuple[str, ...], ...], LazyPattern, str | Callable[[re.Match[str]], str]]

# The rest of an SQL text whose quote is group 2: a doubled quote does not end it.
_SQL_QUOTED = r"(?:\\.|\2\2|(?!\2)[^\\\n])*+(?:\2|\\?(?=\n|\Z))"

PLACES: tuple[Entry, ...] = (
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
    # curl -b session=abc, and as a list of words
    (
        (("curl",), (" -b", "'-b", '"-b'), ("=",)),
        LazyPattern(
            r"""(\bcurl\b[^\n]{0,300}?[\s'"]-b(?:['"],\s?|[ ])?)"""
            r"""(?:(['"])(?=[^'"\n=]{1,100}=)[^'"\n]++|(?=[^\s'"=]{1,100}=)[^\s'"]++)"""
        ),
        rf"\1\2{MASK}",
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
        LazyPattern(r"\b([a-z0-9][\w+.-]{0,60}://[^\s/:'\"]{0,200}):[^\s/'\"]{1,500}@", re.IGNORECASE),
        rf"\1:{MASK}@",
    ),
    # scheme://user:pass/word@host, scheme://user:p@ss/word@host, which are not encoded. Digits and a slash are a port.
    (
        (("://",), ("@",)),
        LazyPattern(
            r"\b([a-z0-9][\w+.-]{0,60}://[^\s/:@'\"]{0,200}):(?![0-9]{0,5}[/?#])"
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
        LazyPattern(r"\b([a-z0-9][\w+.-]{0,60}://)[^\s/:@'\"]{16,500}@", re.IGNORECASE),
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
    # SECRET_ACCESS_KEY 'abc' SESSION_TOKEN 'def', as options of COPY; SET app.api_key TO 'abc'
    (
        (("key", "token", "pass", "secret", "credential"), ("'", '"')),
        LazyPattern(
            rf"(?<![\w-])((?-i:(?=[A-Z]+_[A-Z_]+\s)){TELLING}\s{{1,5}}|(?=[a-z]+_[a-z]+_[a-z]+\s){TELLING}\s{{1,5}}"
            rf"|\bset\s{{1,5}}(?:(?:session|local|global)\s{{1,5}})?(?:\w{{1,60}}\.)?{TELLING}\s{{1,5}}to\s{{1,5}})"
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
)
