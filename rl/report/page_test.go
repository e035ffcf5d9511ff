package report

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

func lines(t *testing.T, records ...rl.Record) string {
	t.Helper()
	text := ""
	for _, r := range records {
		line := must.Get(json.Marshal(r))(t)
		text += string(line) + "\n"
	}
	return text
}

const someMetrics = `{"step":0,"eval_accuracy":0.1,"eval_accuracy_low":0.05,"eval_accuracy_high":0.2}
{"step":1,"loss":0.5,"policy_loss":0.5,"reward":1,"reward_std":0.25,"tiers/tag":0.5,"tiers/none":0.5}
{"step":2,"loss":0.4,"policy_loss":0.4,"reward":2,"reward_std":0.5,"tiers/tag":1,"tiers/none":0}
{"step":2,"eval_accuracy":0.3,"eval_accuracy_low":0.2,"eval_accuracy_high":0.4}
`

// TestPage: the page loads no other file, uses no network, and escapes model output.
func TestPage(t *testing.T) {
	hostile := `<script>alert(1)</script>`
	up, down := rl.Record{Step: 1, Prompt: 3, Shown: "what is " + hostile, Tokens: []string{"<b>", "4\n"}, Reward: 1, Advantage: 2, Correct: true, Tier: "tag", Kind: "short"},
		rl.Record{Step: 1, Prompt: 3, Sample: 1, Shown: "what is " + hostile, Tokens: []string{hostile}, Reward: 0, Advantage: -1}
	later := up
	later.Step, later.PerToken = 9, []rl.Number{0.5, -0.25}
	dir := must.Folder(t, map[string]string{
		"logs/metrics.jsonl": someMetrics, "logs/completions.jsonl": lines(t, up, down, later) + `{"step": 10, "half`,
		"logs/training_log.txt": "a line\nwarning: kl: too far & away\nwarning: kl: too far & away\n", "config.yaml": "seed: 1 # <x>\n",
	})
	page := must.Get(HTML(dir, About{Title: "digits: rl", Stage: Reinforced, Facts: []Setting{{"status", "finished"}, {"command", strings.Repeat("rltrain ", 9)}}}, false))(t)
	text := string(page)
	expect.Contains(t, text,
		`<h3>Held-out accuracy <small>`, `<title>accuracy, 2: 0.3 (0.2 to 0.4)</title>`, `class="band s0"`, "How answers were found",
		`<li>kl: too far &amp; away</li>`, ">Step 1<", ">Step 9<", `<span class="up" style="--a:0.72" title="advantage 2">&lt;b&gt;</span>`,
		`class="down" style="--a:0.42"`, "4⏎\n", "what is &lt;script&gt;", "seed: 1 # &lt;x&gt;", `class="wide"`, `<b class="right">correct</b>`,
	)
	expect.True(t, !strings.Contains(text, "<script"), "the page runs something")
	expect.Same(t, "", regexp.MustCompile(`(?i)(src|href)="[^d#]|url\(|@import|https?:`).FindString(text), "the page asks for something")
	expect.Same(t, 1, strings.Count(text, "too far &amp; away"), "the alarm is shown times")
	watched, err := HTML(dir, About{Title: "digits"}, true)
	expect.True(t, err == nil && strings.Contains(string(watched), `fetch("stamp")`), "a watched page does not look for more: %v", err)
}

// TestPageOfTheBestRewarded: the completions with the highest rewards of the first, the middle and the last step are side
// by side, equal ones once, those without a reward last.
func TestPageOfTheBestRewarded(t *testing.T) {
	var records []rl.Record
	for step := 1; step <= 5; step++ {
		for i := range 24 {
			records = append(records, rl.Record{Step: step, Prompt: i / 4, Sample: i % 4, Shown: fmt.Sprintf("<|im_start|>user\nWhat is %d - 7?<|im_end|>", i/4),
				Written: fmt.Sprintf("text %d of %d", i/2, step), Reward: rl.Number(i / 2), Tier: "whole", Correct: i > 20})
		}
	}
	records[0].Reward = rl.Number(math.NaN())
	dir := must.Folder(t, map[string]string{"logs/completions.jsonl": lines(t, records...) + `{"step": 6, "half`})
	var p page
	must.Do(t, readAnswers(dir, &p))
	expect.Equal(t, []string{"Step 1", "Step 3", "Step 5"}, p.Best.Headers)
	expect.Require(t, len(p.Best.Rows) == mostBest, "%d rows", len(p.Best.Rows))
	expect.Equal(t, []string{`11 correct: …user What is 5 - 7? → "text 11 of 1"`, `11 correct: …user What is 5 - 7? → "text 11 of 3"`, `11 correct: …user What is 5 - 7? → "text 11 of 5"`}, p.Best.Rows[0])
	expect.Same(t, `3 wrong: …user What is 1 - 7? → "text 3 of 3"`, p.Best.Rows[9][1], "Rows")
	for n, want := range map[int]int{24: 1, 48: 2} { // of one step, of two
		few := must.Folder(t, map[string]string{"logs/completions.jsonl": lines(t, records[:n]...)})
		p = page{}
		err := readAnswers(few, &p)
		expect.True(t, err == nil && len(p.Best.Headers) == want && len(p.Moments) == want, "%d records: %q, %v", n, p.Best.Headers, err)
	}
	page, err := HTML(dir, About{}, false)
	expect.True(t, err == nil && strings.Contains(string(page), "<h2>Best-rewarded completions</h2>"), "no heading on the page, %v", err)
}

// TestPageOfLabels shows choices of a classifier with what is right.
func TestPageOfLabels(t *testing.T) {
	var records []rl.Record
	for i := range 12 {
		records = append(records, rl.Record{Step: 2, Prompt: i, Shown: "a text", Written: "law", Truth: []string{"law", "physics"}[i%2], Correct: i%2 == 0, Reward: rl.Number(1 - i%2), Advantage: 0.5})
	}
	page := must.Get(HTML(must.Folder(t, map[string]string{"logs/completions.jsonl": lines(t, records...)}), About{}, false))(t)
	expect.Same(t, labelTexts, strings.Count(string(page), `<div class="shown">`), "texts")
	expect.True(t, strings.Contains(string(page), "law, correct: physics"), "the right label is missing")
}

func TestPageOfDamagedAnswers(t *testing.T) {
	expect.Failure(HTML(must.Folder(t, map[string]string{"logs/completions.jsonl": "{\"step\":1}\nnonsense\n"}), About{}, false))(t, "completions.jsonl:2: ")
}

// TestCompareRuns lays curves over each other and lists what differs.
func TestCompareRuns(t *testing.T) {
	about := About{Title: "digits: rl", Stage: Reinforced, Facts: []Setting{{"status", "finished"}}}
	a := must.Folder(t, map[string]string{"logs/metrics.jsonl": someMetrics, "config.yaml": "# General\nseed: 1  # --seed\nrl_learning_rate: 0.1\n"})
	b := must.Folder(t, map[string]string{"logs/metrics.jsonl": someMetrics + `{"step":3,"value_loss":1}` + "\n", "config.yaml": "seed: 2\nrl_learning_rate: 0.1\nclip_low: 0.2\n"})
	page := must.Get(CompareHTML([]Compared{{a, "one", about}, {b, "two", about}}, false))(t)
	text := string(page)
	expect.Contains(t, text, "2 runs</h1>", `<span class="s0">one</span><span class="s1">two</span>`, "<td>seed</td><td>1</td><td>2</td>", "<td>clip_low</td><td></td><td>0.2</td>")
	for _, not := range []string{"<td>rl_learning_rate</td>", "Value loss"} {
		expect.True(t, !strings.Contains(text, not), "the page has %q", not)
	}
}

// TestChartOfManyValues keeps the extremes of a long curve, and stays small.
func TestChartOfManyValues(t *testing.T) {
	n := 100_000
	x, y := make([]float64, n), make([]float64, n)
	for i := range x {
		x[i] = float64(i)
	}
	y[54_321] = 1
	d := polyline(axesOf(Panel{Series: []Series{{X: x, Y: y}}}), x, y)
	expect.True(t, len(d) <= 20_000, "a path of %d bytes", len(d))
	a := axesOf(Panel{Series: []Series{{X: x, Y: y}}})
	top := a.y(1)
	expect.True(t, regexp.MustCompile(`L[0-9.]+ `+regexp.QuoteMeta(strings.TrimSpace(strings.TrimLeft(formatted(top), "0")))).MatchString(d), "the peak at %s is lost", formatted(top))
}

func formatted(v float64) string {
	text, _ := json.Marshal(v)
	for len(text) > 0 && strings.Contains(string(text), ".") && len(text)-strings.Index(string(text), ".") > 2 {
		text = text[:len(text)-1]
	}
	return string(text)
}

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must.Do(t, os.MkdirAll("testdata", 0o755))
		must.Do(t, os.WriteFile(path, []byte(got), 0o644))
	}
	expect.Equal(t, string(must.Get(os.ReadFile(path))(t)), got, path)
}

func testCard(pooling string) Card {
	return Card{
		Name: "intent_classifier_rl", Stage: "rl", BaseModel: "sentence-transformers/all-MiniLM-L6-v2",
		Adapter: true, Pooling: pooling, MaxLength: 128, Labels: fourteen,
		Data: "Trained on 2,100 questions.",
		Results: Table{
			[]string{"stage", "accuracy", "Brier"},
			[][]string{{"supervised", "0.8123", "0.2711"}, {"rl", "0.8201", "0.2512"}},
		},
		Settings: []Setting{{"learning_rate", "1e-5"}, {"reward_metric", "calibration"}},
		Versions: []Setting{{"rltrain", "0.1.0"}, {"libtorch", "2.11.0"}},
	}
}

func TestModelCards(t *testing.T) {
	local := testCard("family")
	local.BaseModel = `/home/ada/my "bert"`
	local.Results, local.Versions, local.Settings = Table{}, nil, nil
	merged := testCard("mean")
	merged.Adapter, merged.Stage, merged.Data, merged.Results, merged.Versions, merged.Settings = false, "", "", Table{}, nil, nil
	adapter := Card{
		Name: "gsm8k_rl", Task: "gsm8k", Stage: "reinforcement learning with grpo", BaseModel: "Qwen/Qwen2.5-0.5B-Instruct", Adapter: true, Chat: true,
		Data:     "Trained on train.jsonl.",
		Results:  AnswerTable([]NamedScores{{"Before", rl.AnswerScores{N: 200, Correct: 60, Accuracy: 0.3, Interval: rl.Interval{0.24, 0.37}, FormatRate: 0.9}}}),
		Settings: []Setting{{"num_steps", "30"}}, Versions: []Setting{{"rltrain", "0.1.0"}},
	}
	for name, card := range map[string]Card{
		"card_mean.md": testCard("mean"), "card_family.md": testCard("family"), "card_local.md": local, "card_merged.md": merged,
		"card_language_adapter.md": adapter,
		"card_language_merged.md":  {Name: "mine", BaseModel: "Qwen/Qwen2.5-0.5B-Instruct", Merged: true, Chat: true},
		"card_language_whole.md":   {Name: "sum_digits_rl", Task: "sum_digits", Stage: "rl", BaseModel: "./tiny"},
	} {
		text := must.Get(card.Markdown())(t)
		golden(t, name, text)
	}
}

func TestAnEditedCardIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "README.md")
	write := func(stage string, want bool) {
		t.Helper()
		card := testCard("mean")
		card.Stage = stage
		written, err := WriteCard(dir, card)
		expect.True(t, err == nil && written == want, "stage %s: written %v, %v; want %v", stage, written, err, want)
	}
	write("one", true)
	write("two", true)
	text := must.Read(t, path)
	expect.True(t, strings.Contains(text, `stage "two"`) && !strings.Contains(text, `stage "one"`), "the card was not written anew")
	mine := strings.Replace(must.Read(t, path), cardMarker, "", 1)
	must.Write(t, path, mine)
	write("three", false)
	expect.Same(t, mine, must.Read(t, path), "an edited card was changed")
}

func TestHTML(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "odd [name]*")
	must.Do(t, os.MkdirAll(filepath.Join(dir, "logs"), 0o755))
	about := About{Title: "intent: rl", Facts: []Setting{
		{"status", "running"}, {"command", "rltrain --dataset <b>.csv"}, {"started", "2026-03-01T12:00:00Z"},
		{"device", "cpu, 2 threads, some cpu"}, {"seed", "42"}, {"libtorch", "2.11.0"},
	}}
	page := func() string {
		t.Helper()
		path := must.Get(WriteHTML(dir, about))(t)
		return must.Read(t, path)
	}
	golden(t, "report_started.html", page())

	m := must.Get(OpenLines(filepath.Join(dir, "logs", "metrics.jsonl"), 0))(t)
	for _, row := range ppoRows() {
		must.Do(t, m.Write(row))
	}
	m.Close()
	e := rl.Evaluate([]string{"a", "b"}, []int{0, 0, 1, 1}, [][]float32{{0.9, 0.1}, {0.4, 0.6}, {0.2, 0.8}, {0.3, 0.7}})
	must.Do(t, files.SaveJSON(filepath.Join(dir, "logs", "eval_results.json"), e))
	must.Write(t, filepath.Join(dir, "config.yaml"), "mode: rl_only\nreward: 'a < b'\n")
	about.Stage = Reinforced
	about.Inexact = []string{"threads was 4, is now 2"}
	got := page()
	expect.Contains(t, got,
		"rltrain --dataset &lt;b&gt;.csv", "threads was 4", "0.7500", "95 % CI",
		`<svg viewBox="0 0 560 250"`, "explained_variance", "a &lt; b",
	)
	for _, never := range []string{"ZgotmplZ", "http://", "https://", `src="/`} {
		expect.True(t, !strings.Contains(got, never), "the page holds %q", never)
	}

	must.Write(t, filepath.Join(dir, "logs", "metrics.jsonl"), "{}\nrubbish\n")
	_, err := WriteHTML(dir, about)
	expect.Line(t, err, "metrics.jsonl: line 2")
}

// TestReportOfALanguageModel shows evaluations by time and by kind.
func TestReportOfALanguageModel(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, "logs"), 0o755))
	scores := func(right int) *rl.AnswerScores {
		return &rl.AnswerScores{N: 200, Correct: right, Accuracy: float64(right) / 200, Kinds: map[string]rl.KindScore{"three numbers": {N: 50, Correct: right / 4}}}
	}
	for _, results := range []any{AnswerResults{Before: scores(100), After: scores(180), Last: scores(160), Fresh: scores(176)}, scores(100)} {
		must.Do(t, files.SaveJSON(filepath.Join(dir, "logs", "eval_results.json"), results))
		path := must.Get(WriteHTML(dir, About{Title: "sum_digits: rl", Stage: Reinforced}))(t)
		want := []string{"<td>after training</td><td>200</td><td>100</td><td>50.0</td>", "<td>three numbers</td><td>25/50</td>"}
		if _, staged := results.(AnswerResults); staged {
			want = []string{
				"<td>before</td><td>200</td><td>100</td><td>50.0</td>", "<td>best</td><td>200</td><td>180</td><td>90.0</td>",
				"<td>best, unseen test problems</td>", "<td>three numbers</td><td>25/50</td><td>45/50</td>",
			}
		}
		expect.Contains(t, must.Read(t, path), want...)
	}
}
