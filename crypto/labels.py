"""Domain-separation labels of protocol ``secfed/v1``.

Four more are where they are used: the digests of ring and parameters in ``bfv.py``, the encoded keys in
``bfv_tenseal.py``. What is not part of the protocol (enrolment, data, noise) keeps its own likewise.

A label is the first input of every signature, hash and key derivation. Two uses never share one, so
bytes made for one purpose cannot stand in for another. Changing a label is a new protocol version.
"""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = b"secfed/v1"

# Digests (SHA-256 over label + canonical encoding).
ROSTER_DIGEST: Final = b"secfed/v1 roster digest"
LAYOUT_DIGEST: Final = b"secfed/v1 layout digest"
BROADCAST_DIGEST: Final = b"secfed/v1 broadcast digest"
SPEC_DIGEST: Final = b"secfed/v1 attempt specification digest"
ADVERT_DIGEST: Final = b"secfed/v1 advert digest"
ADVERTS_DIGEST: Final = b"secfed/v1 advertised set digest"
SHARING_DIGEST: Final = b"secfed/v1 sharing set digest"
VECTOR_DIGEST: Final = b"secfed/v1 uploaded vector digest"
TOTALS_DIGEST: Final = b"secfed/v1 totals digest"
CLOSED_SUMS: Final = b"secfed/v1 closed sums"
GROUP_KEY_CHECK: Final = b"secfed/v1 group key check"
STUDY_PUBLIC_KEY: Final = b"secfed/v1 study public key digest"
SAMPLED_COHORT: Final = b"secfed/v1 sampled cohort"
STUDY_DIGEST: Final = b"secfed/v1 study digest"
SELF_MASK_COMMITMENT: Final = b"secfed/v1 self-mask commitment"
MASK_SECRET_SHARE: Final = b"secfed/v1 mask secret share digest"
SELF_MASK_SHARE: Final = b"secfed/v1 self-mask share digest"
FINGERPRINT: Final = b"secfed/v1 identity fingerprint"
RELEASE_ID: Final = b"secfed/v1 release id"
ATTEMPT_BINDING: Final = b"secfed/v1 attempt binding"

# Signatures (Ed25519 over label + canonical encoding).
SIGN_SPEC: Final = b"secfed/v1 sign attempt specification"
SIGN_ADVERT: Final = b"secfed/v1 sign advertised keys"
SIGN_CHOICE: Final = b"secfed/v1 sign choice of holders"
SIGN_ENVELOPE: Final = b"secfed/v1 sign envelope"
SIGN_SEED_ENVELOPE: Final = b"secfed/v1 sign seed envelope"
SIGN_CONFIRMATION: Final = b"secfed/v1 sign confirmation"
SIGN_UPLOAD: Final = b"secfed/v1 sign upload"
SIGN_VIEW: Final = b"secfed/v1 sign consistent view"
SIGN_UNMASK: Final = b"secfed/v1 sign unmask shares"
SIGN_RESULT: Final = b"secfed/v1 sign result"
SIGN_MODEL: Final = b"secfed/v1 sign final model"
SIGN_KEY_HELLO: Final = b"secfed/v1 sign study key hello"
SIGN_KEY_PACKAGE: Final = b"secfed/v1 sign study key package"
SIGN_STATE: Final = b"secfed/v1 sign state digest"
SIGN_TRANSCRIPT: Final = b"secfed/v1 sign transcript entry"
SIGN_LEDGER: Final = b"secfed/v1 sign ledger entry"
SIGN_DECISION: Final = b"secfed/v1 sign decision log entry"
SIGN_LETTER: Final = b"secfed/v1 sign letter"
SIGN_SITE_FILE: Final = b"secfed/v1 sign site file"

# Chains.
TRANSCRIPT_CHAIN: Final = b"secfed/v1 transcript chain"
LEDGER_CHAIN: Final = b"secfed/v1 ledger chain"
DECISION_CHAIN: Final = b"secfed/v1 decision log chain"

# Key derivations (HKDF-SHA-256 info strings).
DERIVE_MASK_KEY_MLKEM: Final = b"secfed/v1 derive mask key ML-KEM-768"
DERIVE_MASK_KEY_X25519: Final = b"secfed/v1 derive mask key X25519"
DERIVE_PAIR_SEED: Final = b"secfed/v1 derive outgoing pair seed"
DERIVE_PAIR_MASK: Final = b"secfed/v1 derive pair mask stream"
DERIVE_SELF_MASK: Final = b"secfed/v1 derive self mask stream"
DERIVE_PAIR_MASK_AES: Final = b"secfed/v1 derive pair mask stream AES-256-CTR"
DERIVE_SELF_MASK_AES: Final = b"secfed/v1 derive self mask stream AES-256-CTR"
DERIVE_STATE_TAG: Final = b"secfed/v1 derive state tag"
DERIVE_TAG_VECTORS: Final = b"secfed/v1 derive tag vectors"
DERIVE_TAG_PADS: Final = b"secfed/v1 derive tag pads"
DERIVE_CLOSING_SEED: Final = b"secfed/v1 derive closing seed"
DERIVE_CLOSING: Final = b"secfed/v1 derive closing stream"
DERIVE_CLOSING_AES: Final = b"secfed/v1 derive closing stream AES-256-CTR"
DERIVE_CLOSING_TAGS: Final = b"secfed/v1 derive closing tags"
DERIVE_ROUNDING: Final = b"secfed/v1 derive stochastic rounding stream"
DERIVE_SIMULATED_NOISE: Final = b"secfed/v1 derive simulated privacy noise"
DERIVE_SITE_NOISE: Final = b"secfed/v1 derive site noise"
DERIVE_WORK_NOISE: Final = b"secfed/v1 derive work noise key"
DERIVE_WORK_LOCAL: Final = b"secfed/v1 derive work local randomness"
DERIVE_LOCAL_SEED: Final = b"secfed/v1 derive local training seed"
DERIVE_ATTEMPT_TOKEN: Final = b"secfed/v1 derive attempt token"
DERIVE_ATTEMPT_NUMBERS: Final = b"secfed/v1 derive attempt number stream"
DERIVE_ATTEMPT_SEAL_MLKEM: Final = b"secfed/v1 derive attempt sealing key ML-KEM-768"
DERIVE_ATTEMPT_SEAL_X25519: Final = b"secfed/v1 derive attempt sealing key X25519"

# HPKE info strings (RFC 9180 section 5.1).
SEAL_PAIR_SEED: Final = b"secfed/v1 seal pair seed"
SEAL_SHARES: Final = b"secfed/v1 seal shares"
SEAL_STUDY_KEY: Final = b"secfed/v1 seal study key"
