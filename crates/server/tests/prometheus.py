"""Reads metrics from stdin with Prometheus' own parser and checks what makes them valid."""

import re
import sys

from prometheus_client.parser import text_string_to_metric_families

text = sys.stdin.read()
assert text.endswith("\n")
for keyword in ("HELP", "TYPE"):
    names = re.findall(rf"^# {keyword} (\S+)", text, re.M)
    assert len(names) == len(set(names)), f"a family has {keyword} twice"

families = list(text_string_to_metric_families(text))
assert len(families) == len(names), "a family stands in several blocks"
assert len({family.name for family in families}) == len(families)
seen, histograms, models = set(), 0, set()
for family in families:
    assert family.documentation and family.type in ("gauge", "counter", "histogram"), family
    buckets, sums, counts = {}, {}, {}
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in seen, f"{key} is there twice"
        seen.add(key)
        assert sample.value == sample.value and sample.value >= 0, sample
        models.add(sample.labels.get("model"))
        if family.type != "histogram":
            continue
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        if sample.name == family.name + "_bucket":
            buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name == family.name + "_sum":
            sums[key] = sample.value
        else:
            assert sample.name == family.name + "_count", sample
            counts[key] = sample.value
    assert buckets.keys() == sums.keys() == counts.keys()
    for key, series in buckets.items():
        assert series == sorted(series) and [c for _, c in series] == sorted(c for _, c in series)
        assert series[0][0] == 0.001 and series[-2][0] == 600 and series[-1] == (float("inf"), counts[key])
        histograms += 1
assert histograms == 16, histograms
assert 'a "quoted\\name"\nin two lines' in models, models
