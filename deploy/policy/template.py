"""The ``policy.toml`` of a new site: every key explained, and nothing permitted yet."""

from __future__ import annotations

from typing import Final

POLICY_FILE: Final = "policy.toml"

POLICY_TEMPLATE: Final = """\
# What studies may do at this hospital. The study centre cannot override it, and what is not named here
# is not permitted. Check the file with: secfed site status

approve = "manual"              # "manual": a person approves each new study; "automatic": this file decides
# timezone = "Europe/Berlin"    # of [[hours]]; without it, this machine's own

[studies]
names = []                      # names of studies, "*" for anything, as in "heart-*"
# digests = []                  # or exact studies, by digest
max_rounds = 200
near_twins = "ask"              # studies that resemble an earlier one: "ask" a person, "refuse", "permit"

[protection]
names = ["masked", "encrypted"]
min_cohort = 3                  # fewest hospitals in one sum
min_threshold = 3               # fewest hospitals that must answer

[privacy]
require = true                  # refuse studies without differential privacy
units = ["record", "group"]     # what is protected: "record", "group", "site"
max_epsilon = 3.0               # of one study
max_delta = 1e-5
metrics = ["withheld", "private"]   # "unprotected" would let metrics leave without noise, in sums
weights = ["withheld"]              # "unprotected" would let the total number of records leave

[compute]
gpu = false                     # may training use the GPU?

# Algorithms and models, each with rules for its settings: a range, an array of permitted values, or "any".
# A setting without a rule must have its default. Code of your own, "package.module:factory", may be
# imported once it is named here or as a data source: read it first.
#
# [algorithms.fedavg]
# local_epochs = { max = 5 }
# batch_size = { min = 16, max = 256 }
# learning_rate = { max = 1.0 }
# optimizer = ["sgd", "adam"]
#
# [models.mlp]
# hidden = { max = 256 }
# start_sha256 = ["9f86d0..."]    # models that training may begin with, by digest, or "any"; without it none

# Data sets. Each has its own privacy ledger and at least one budget.
#
# [[data]]
# name = "heart"                        # the name of its ledger
# source = "csv"                        # what studies write as data.name
# path = "/srv/secfed/data/heart.csv"   # here; nobody else learns it
# study_path = "heart.csv"              # what studies write as data.path
# options = { label_column = ["num"], feature_columns = ["age", "sex"] }    # or "any"
#
# [[data.budget]]
# epsilon = 10.0
# delta = 1e-5
# period_days = 365

# When training may run; without any window, always.
#
# [[hours]]
# days = ["mon", "tue", "wed", "thu", "fri"]
# start = "20:00"
# end = "06:00"
"""
