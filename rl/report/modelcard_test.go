package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

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
	for name, card := range map[string]Card{
		"card_mean.md": testCard("mean"), "card_family.md": testCard("family"), "card_local.md": local, "card_merged.md": merged,
	} {
		text := must.Get(card.Markdown())(t)
		golden(t, name, text)
	}
}

func TestLanguageCards(t *testing.T) {
	adapter := Card{
		Name: "gsm8k_rl", Task: "gsm8k", Stage: "reinforcement learning with grpo", BaseModel: "Qwen/Qwen2.5-0.5B-Instruct", Adapter: true, Chat: true,
		Data:     "Trained on train.jsonl.",
		Results:  AnswerTable([]NamedScores{{"Before", rl.AnswerScores{N: 200, Correct: 60, Accuracy: 0.3, Interval: rl.Interval{0.24, 0.37}, FormatRate: 0.9}}}),
		Settings: []Setting{{"num_steps", "30"}}, Versions: []Setting{{"rltrain", "0.1.0"}},
	}
	for name, card := range map[string]Card{
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
	if keep := os.Getenv("PLOT_DIR"); keep != "" {
		must.Write(t, filepath.Join(keep, "report.html"), got)
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
		page := must.Read(t, path)
		expect.Contains(t, page, want...)
	}
}
