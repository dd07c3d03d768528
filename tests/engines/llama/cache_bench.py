# SPDX-License-Identifier: Apache-2.0
"""The time to the first token of llama-cpp-python where another process computed the prompt, over computing it."""

import statistics

import support

LENGTHS = (128, 512)  # tokens


def measure(service, model, repeat: int) -> dict:
    """Pairs of processes over one KV space in a lease: the first computes a prompt that nobody has seen, and is killed; the
    second restores it. Each ratio is of one pair."""
    service.cli("lease", "grant", "--pool", "p", "--size", "512M", "--persistent", "--label", "cache", "--mode", "shared_coherent")
    service.cli("kv", "format", "cache", "--block", "1M", json=False)
    result = {}
    for length in LENGTHS:
        pairs, state_bytes = [], 0.0
        for number in range(repeat):
            prompt = [3 + (length + number * 577 + i * (31 + 2 * number)) % 1021 for i in range(length)]
            answers = []
            for _ in range(2):
                process = support.CacheProcess(model, "cache", TERRACE_SOCKET=service.socket)
                answers.append(process.ask("complete", prompt=prompt, tokens=2))
                counts = process.ask("counts")
                process.close()
            same = answers[0]["tokens"] == answers[1]["tokens"]
            if counts.get("hit") != 1 or not same or answers[1]["evaluated"] > 2 + len(answers[1]["tokens"]):
                raise AssertionError(f"nothing was restored, or something else: {answers} {counts}")
            state_bytes = counts["size"] / (number + 1)  # of this length there are so many by now
            pairs.append([answer["first_token_s"] for answer in answers])
        result[f"first_token_computed_s_{length}"] = statistics.median(pair[0] for pair in pairs)
        result[f"first_token_restored_s_{length}"] = statistics.median(pair[1] for pair in pairs)
        result[f"first_token_restored_over_computed_{length}"] = statistics.median(pair[1] / pair[0] for pair in pairs)
        result[f"state_mib_{length}"] = state_bytes / (1 << 20)
        service.cli("kv", "flush", "cache", "--all", json=False)
    return result
