# SPDX-License-Identifier: Apache-2.0
"""perl, ruby, php, lua, octave and R: interpreters with many small objects, and some large strings and matrices."""

from devlib.apps.registry import App
from devlib.apps.side import Side, digest

PERL = r"""
use strict; use warnings; use Digest::MD5 qw(md5_hex);
my $n = shift; my ($seed, %words, @all) = (7);
sub chance { $seed = ($seed * 1664525 + 1013904223) % 4294967296; return $seed }
for my $i (1 .. $n) { my $word = 'w' . chance() % ($n / 5); $words{$word} .= "$i,"; push @all, [$word, $i, chance()] }
print "words ", md5_hex(join ';', map { "$_=$words{$_}" } sort keys %words), "\n";
print "sorted ", md5_hex(join ',', map { $_->[2] } sort { $a->[2] <=> $b->[2] || $a->[1] <=> $b->[1] } @all), "\n";
my $text = join ' ', map { $_->[0] } @all; (my $other = $text) =~ s/w(\d+)/<$1>/g;
print "replaced ", length $other, " ", md5_hex($other), "\n";
my $pid = open(my $child, '-|') // die; if (!$pid) { print md5_hex($other x 3); exit 0 } print "child ", <$child>, "\n";
"""
RUBY = r"""
require 'digest'; require 'json'
n = ARGV[0].to_i; seed = 7
chance = -> { seed = (seed * 1664525 + 1013904223) % 4294967296 }
rows = (1..n).map { |i| { 'key' => chance.call, 'text' => "row #{i} " * (1 + chance.call % 9) } }
puts "json #{Digest::MD5.hexdigest(JSON.generate(JSON.parse(JSON.generate(rows)).sort_by { |row| [row['key'], row['text']] }))}"
threads = (0...4).map { |t| Thread.new { (1..n).map { |i| "#{t}:#{i}" * 3 }.group_by(&:size).map { |k, v| [k, v.size] }.sort.inspect } }
puts "threads #{Digest::MD5.hexdigest(threads.map(&:value).join)}"
big = 'x' * (n * 200); 20.times { |i| big = big.tr('xy', 'yx') + i.to_s }
puts "strings #{Digest::MD5.hexdigest(big)}"
reader, writer = IO.pipe
if fork then writer.close; puts "child #{reader.read}"; Process.wait
else reader.close; GC.start; writer.write(Digest::MD5.hexdigest(big * 2)); writer.close; exit!(0) end
"""
PHP = r"""<?php
$n = (int)$argv[1]; $seed = 7;
function chance() { global $seed; return $seed = ($seed * 1664525 + 1013904223) % 4294967296; }
$rows = []; for ($i = 0; $i < $n; ++$i) $rows["k" . chance() % $n][] = ['i' => $i, 'text' => str_repeat("row $i ", 1 + chance() % 9)];
ksort($rows); echo "json ", md5(json_encode(json_decode(json_encode($rows), true))), "\n";
$text = implode(' ', array_map(fn($r) => $r[0]['text'], $rows));
echo "regex ", md5(preg_replace_callback('/row (\d+)/', fn($m) => $m[1] * 2, $text)), "\n";
$parts = []; for ($i = 0; $i < 60; ++$i) { $parts[] = str_repeat(chr(65 + $i % 26), 500000 + chance() % 500000); if (count($parts) > 20) array_shift($parts); }
echo "strings ", md5(implode($parts)), "\n";
"""
LUA = r"""
local n, seed = tonumber(arg[1]), 7
local function chance() seed = (seed * 1664525 + 1013904223) % 4294967296; return seed end
local function sum(text) local h = 5381; for i = 1, #text do h = (h * 33 + text:byte(i)) % 4294967296 end return h end
local rows = {}; for i = 1, n do rows[i] = {key = chance(), text = ('row ' .. i .. ' '):rep(1 + chance() % 9)} end
table.sort(rows, function(a, b) if a.key ~= b.key then return a.key < b.key end return a.text < b.text end)
local parts = {}; for i = 1, n do parts[i] = rows[i].text end
local text = table.concat(parts)
print('sorted ' .. #text .. ' ' .. sum(text))
local other, count = text:gsub('row (%d+)', '<%1>')
print('replaced ' .. count .. ' ' .. sum(other))
for round = 1, 5 do rows = {}; for i = 1, n do rows[i] = {round = round, name = 'x' .. i} end collectgarbage() end
print('rounds ' .. #rows .. ' ' .. rows[n].name)
"""
OCTAVE = r"""
n = str2double(argv(){1}); rand('twister', 7);
a = rand(n); b = a * a';
printf('product %.6e\n', sum(b(:)));
printf('solve %.4e\n', sum((b + n * eye(n)) \ ones(n, 1)));
printf('sort %.10e\n', sum(sort(a(:))(1:10)));
s = ''; for i = 1:2000; s = [s sprintf('%d,', i * 7)]; end
printf('text %d %s\n', numel(s), hash('md5', s));
c = cell(1, 300); for i = 1:300; c{i} = rand(1, 20000); if i > 100; c{i - 100} = []; end; end
printf('cells %.8e\n', sum(cellfun(@sum, c)));
"""
R = r"""
n <- as.integer(commandArgs(trailingOnly = TRUE)[1])
set.seed(7, kind = "Mersenne-Twister", normal.kind = "Inversion", sample.kind = "Rejection")
hashed <- function(x) { writeBin(serialize(x, NULL, ascii = TRUE), "hashed"); unname(tools::md5sum("hashed")) }
say <- function(name, ...) cat(name, " ", paste(...), "\n", sep = "")
x <- runif(n * 10)
say("sorted", hashed(sort(x)), hashed(order(x, decreasing = TRUE)), hashed(rank(round(x, 3), ties.method = "min")))
m <- matrix(rnorm(n * 5), ncol = 50); g <- crossprod(m)
say("matrices", hashed(g), hashed(solve(g, colSums(m))), hashed(t(m)[, 1:9]), hashed(round(svd(m)$d, 6)))
d <- data.frame(key = sample(n %/% 20, n, TRUE), kind = sample(letters, n, TRUE), value = runif(n))
d$text <- paste("row", seq_len(n))
say("frames", hashed(aggregate(value ~ kind, d, sum)), hashed(merge(d, d[1:500, ], by = "key")),
    hashed(table(d$kind, d$key %% 7)), hashed(do.call(rbind, lapply(split(d, d$kind), head, 20))))
say("model", hashed(round(coef(lm(value ~ kind + key, d)), 8)))
words <- unlist(strsplit(paste(d$text, collapse = " "), " "))
say("regex", hashed(gsub("([0-9])([0-9]*)", "\\2<\\1>", words)), sum(grepl("7.*3$", words, perl = TRUE)),
    hashed(toupper(rev(words))))
kept <- list()
for (i in seq_len(300)) {
  kept[[i]] <- rnorm(sample(n * 2, 1)); if (i > 60) kept[i - 60] <- list(NULL); if (i %% 50 == 0) invisible(gc())
}
say("churn", hashed(vapply(kept, function(k) if (is.null(k)) 0 else sum(k), 0)))
saveRDS(d, "rows.rds"); say("saved", identical(readRDS("rows.rds"), d))
say("child", system(paste("printf %s", hashed(d), "| tr a-f A-F"), intern = TRUE))
say("forked", hashed(parallel::mclapply(1:6, function(i) sum(sort(x * i)[seq_len(n)]), mc.cores = 2)))
"""


def _lines(out: bytes) -> dict:
    return dict(line.split(" ", 1) for line in out.decode().splitlines())


def _interpreter(program: str, file: str, source: str, quick: int, full: int, *options):
    def action(side: Side) -> dict:
        return _lines(side.run(program, *options, side.script(file, source), str(quick if side.quick else full)))
    return action


def _perl_modules(side: Side) -> dict:
    results = _interpreter("perl", "program.pl", PERL, 60_000, 600_000)(side)
    results["syntax"] = digest(side.run("perl", "-MO=Concise", "-e", "my @a = map { $_ * 2 } 1 .. 9; print @a"))
    return results


APPS = [
    App("perl", "hashes, sorting, regular expressions, a child", _perl_modules, programs={"perl": "perl"}, ddr="8M"),
    App("ruby", "JSON, threads, strings, a forked child", _interpreter("ruby", "program.rb", RUBY, 10_000, 100_000),
        programs={"ruby": "ruby"}),
    App("php", "arrays, JSON, regular expressions, large strings", _interpreter("php", "program.php", PHP, 20_000, 200_000,
        "-d", "memory_limit=-1"), programs={"php": "php-cli"}),
    App("lua", "tables, sorting, strings, collections", _interpreter("lua5.4", "program.lua", LUA, 30_000, 300_000),
        programs={"lua5.4": "lua5.4"}, ddr="8M"),
    App("octave", "matrices, cells, strings", _interpreter("octave-cli", "program.m", OCTAVE, 300, 1200, "-qf"),
        programs={"octave-cli": "octave"}),
    App("R", "sorting, matrices, data frames, regular expressions, forked children", _interpreter("Rscript",
        "program.R", R, 10_000, 60_000, "--vanilla"), programs={"Rscript": "r-base-core"}),
]
