"""Tokens that are known by their shape: what vendors begin them with, which characters follow and how many.

Each row holds what the text must contain, in lower case, and the token. A beginning that is also a word, or that other
things begin with, needs the exact alphabet and length.
"""

from __future__ import annotations

import re

from redrive._internal.masking.patterns import MASK, LazyPattern

_TABLE: tuple[tuple[tuple[str, ...], str], ...] = (
    # clouds and platforms
    (("ltai",), r"LTAI[A-Za-z0-9]{20,24}"),  # Alibaba
    (("absk",), r"ABSK[A-Za-z0-9+/=]{100,}"),  # Amazon Bedrock
    (("q~",), r"(?<![~.-])[\w~.-]{3}[0-9]Q~[\w~.-]{31,34}(?![\w~-])"),  # Microsoft Entra
    (("1//0",), r"(?<!/)1//0[\w-]{40,}"),  # Google, refresh tokens
    (("dop_v1_", "doo_v1_", "dor_v1_"), r"do[opr]_v1_[0-9a-f]{40,}"),  # DigitalOcean
    (("hrku-",), r"HRKU-[\w-]{30,}"),  # Heroku
    (("flyv1", "fm1", "fm2", "fo1_"), r"(?:FlyV1\s{1,3})?f(?:m[12][ar]?|o1)_[\w+/=,-]{40,}"),  # Fly
    (("rnd_",), r"rnd_[A-Za-z0-9]{28,}"),  # Render
    (("sbp_", "sb_secret_"), r"(?:sbp_[0-9a-z_]{40,}|sb_secret_[\w-]{20,})"),  # Supabase
    (("pscale_",), r"pscale_(?:tkn|pw|oauth|app)_[\w=-]{20,}"),  # PlanetScale
    (("napi_", "nfp_"), r"(?:napi|nfp)_[A-Za-z0-9]{30,}"),  # Neon, Netlify
    (("mdb_sa_sk_",), r"mdb_sa_sk_[\w-]{30,}"),  # MongoDB
    (("dapi",), r"dapi[0-9a-f]{32}(?:-[0-9])?"),  # Databricks
    (("tskey-",), r"tskey-[\w-]{20,}"),  # Tailscale
    (("v1.0-",), r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}"),  # Cloudflare, origin
    # infrastructure as code, secrets
    (("atlasv1.",), r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),  # Terraform
    (("pul-",), r"pul-[0-9a-f]{40}"),  # Pulumi
    (("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[\w-]{2,35}\.)?[A-Za-z0-9]{40,44}"),  # Doppler
    (
        ("s.", "b.", "r."),
        r"(?<![.\\])[sbr]\.(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{24}(?![\w(]|\.\w)",
    ),  # Vault, before 1.10
    (("age-secret-key-1",), r"(?i:AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58})"),
    (("ops_eyj",), r"ops_eyJ[\w=-]{100,}"),  # 1Password
    # code and packages
    (("ccipat_", "cciprj_"), r"CCIP(?:AT|RJ)_[\w-]{30,}"),  # CircleCI
    (("bkua_",), r"bkua_[0-9a-f]{40}"),  # Buildkite
    (("atctt3", "atbb"), r"(?:ATCTT3[\w=-]{20,}|ATBB[A-Za-z0-9]{32})"),  # Atlassian, Bitbucket
    (("rubygems_",), r"rubygems_[0-9a-f]{48}"),
    (("dckr_oat_",), r"dckr_oat_[\w-]{20,}"),
    (("oy2",), r"oy2[a-z0-9]{43}"),  # NuGet
    (("cio",), r"cio(?=[A-Za-z]{0,31}[0-9])[A-Za-z0-9]{32}"),  # crates.io
    (("sgp_",), r"sgp_(?:[0-9a-f]{16}_)?[0-9a-f]{40}"),  # Sourcegraph
    # observability
    (("glsa_", "glc_"), r"(?:glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}|glc_[A-Za-z0-9+/=]{32,})"),  # Grafana
    (("nrak-", "nrii-", "nrra-", "nraa-", "nrjs-", "nrsp-"), r"NR(?:AK|II|RA|AA|JS|SP)-[\w-]{20,}"),  # New Relic
    (("dt0",), r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # Dynatrace
    (("pnu_", "pnb_"), r"pn[ub]_[A-Za-z0-9]{36}"),  # Prefect
    (("dbtc_", "dbtu_"), r"dbt[cu]_[\w-]{30,}"),  # dbt
    # work and messages
    (("xapp-",), r"xapp-[\w-]{20,}"),  # Slack
    (("xwfp-",), r"xwfp-[\w-]{20,}"),
    (
        (".",),  # Discord: an id in base64, a time, a signature
        r"[MNO](?=[A-Za-z_-]{0,24}[0-9])[\w-]{23,25}\.[\w-]{6}\.[\w-]{27,38}(?![\w-]|\.\w)",
    ),
    (("secret_", "ntn_"), r"(?:secret_[A-Za-z0-9]{40,}|ntn_[A-Za-z0-9]{40,})"),  # Notion
    (("pat",), r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),  # Airtable
    (("lin_oauth_",), r"lin_oauth_[A-Za-z0-9]{30,}"),  # Linear
    (("figd_", "figo_"), r"fig[do]_[\w-]{40,}"),  # Figma
    (("pmak-",), r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    (("cfpat-",), r"CFPAT-[\w-]{40,}"),  # Contentful
    # mail
    (("key-",), r"(?<!-)key-[0-9a-f]{32}(?![\w-])"),  # Mailgun; `cache-key-…` is something else
    (("xkeysib-", "xsmtpsib-"), r"x(?:key|smtp)sib-[0-9a-f]{64}[\w-]*+"),  # Brevo
    (("re_",), r"re_[A-Za-z0-9]{8}_(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{20,}"),  # Resend
    # payments and shops
    (("eaaa",), r"(?<![+/=-])EAAA[\w-]{60}(?![\w+/=-])"),  # Square
    (("access-",), r"access-(?:sandbox|development|production)-[0-9a-f-]{36}"),  # Plaid
    (("access_token$",), r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}"),  # PayPal
    (("flwseck",), r"FLWSECK(?:_TEST)?-[0-9a-zA-Z]{12,}(?:-X)?"),  # Flutterwave
    (("duffel_", "shippo_"), r"(?:duffel|shippo)_(?:test|live)_[\w=-]{30,}"),
    (("ezak", "eztk"), r"EZ[AT]K[A-Za-z0-9]{54}"),  # EasyPost
    (("shptka_",), r"shptka_[0-9a-fA-F]{32}"),  # Shopify
    # models
    (("gsk_",), r"gsk_[A-Za-z0-9]{40,}"),  # Groq
    (("xai-",), r"xai-[A-Za-z0-9]{60,}"),
    (("pplx-",), r"pplx-[A-Za-z0-9]{40,}"),  # Perplexity
    (("r8_",), r"r8_[A-Za-z0-9]{37,}"),  # Replicate
    (("lsv2_",), r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),  # LangSmith
    (("pcsk_",), r"pcsk_[\w-]{40,}"),  # Pinecone
    (("api_org_",), r"api_org_[A-Za-z0-9]{30,}"),  # Hugging Face
)

_TOKENS = tuple((words, LazyPattern(rf"\b{token}")) for words, token in _TABLE)

# None is shorter: most messages have no such word, and need no look for sixty beginnings.
_LONG_WORD = re.compile(r"[\w.~/$+=-]{20}")


def mask_tokens(text: str, lowered: str) -> str:
    """Return the text without tokens that are known by their shape; `lowered` is the text in lower case."""
    if not _LONG_WORD.search(text):
        return text
    for words, token in _TOKENS:
        for word in words:
            if word in lowered:
                text = token.sub(MASK, text)
                break
    return text
