package reward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// shell writes a program whose body can use $id and $line of each question, and $dir, a private folder.
func shell(t *testing.T, body string) (command, dir string) {
	t.Helper()
	dir = t.TempDir()
	script := "dir='" + dir + "'\nwhile IFS= read -r line; do\nid=${line#*:}; id=${id%%,*}\n" + body + "\ndone\n"
	return "cmd:'sh " + must.File(t, "judge.sh", script) + "'", dir
}

const good = `echo "{\"id\":$id,\"reward\":1}"`

// judge scores texts with one program and returns values and failures.
func judge(t *testing.T, r *Text, texts ...string) (values []float64, errs []string) {
	t.Helper()
	said := r.rewards[0].score(t.Context(), completions(texts...), 1, time.Minute)
	for _, err := range said.errs {
		if err == nil {
			errs = append(errs, "")
		} else {
			errs = append(errs, err.Error())
		}
	}
	return said.values, errs
}

func TestProgramIsAskedAboutTexts(t *testing.T) {
	command, dir := shell(t, `printf '%s\n' "$line" >> "$dir/asked"; `+good)
	r := parseText(t, command+"=0.5,expr:1", nil, Options{})
	expect.Fails(os.Stat(filepath.Join(dir, "asked")))(t, "the program runs before it is asked")
	said := []envs.Message{{Role: envs.RoleUser, Content: "Go."}}
	batch := []envs.Completion{sample, {Observation: envs.Observation{Text: "Say <a> & \"b\".\n"}, Text: "no", Action: envs.Action{Text: "o"}, Generated: "o"},
		{Action: envs.Action{Text: "t", Thinking: "hm"}, Generated: "<hm>t", Said: said, Tools: envs.ToolUse{Offered: true, Calls: 1}}}
	expect.Equal(t, []float64{1.5, 1.5, 1.5}, must.Get(r.Score(t.Context(), batch, 1))(t).Total, "totals")
	want := `{"id":1,"prompt":"6 times 7?","text":"is the answer: Öl 42\n","written":"6 times 7\nis the answer: Öl 42\n","answer":"42","truth":"42.0","correct":true,"formatted":false}
{"id":2,"prompt":"Say <a> & \"b\".\n","text":"o","written":"no","answer":null,"truth":null,"correct":null,"formatted":null}
{"id":3,"prompt":"","text":"t","thinking":"hm","completion":"<hm>t","written":"","answer":null,"truth":null,"correct":null,"formatted":null,"messages":[{"role":"user","content":"Go."}],"tools":{"calls":1,"failed":0,"malformed":0}}
`
	expect.Equal(t, want, string(must.Get(os.ReadFile(filepath.Join(dir, "asked")))(t)), "questions")
}

func TestProgramScoresLabels(t *testing.T) {
	command, dir := shell(t, `printf '%s\n' "$line" >> "$dir/asked"
case $line in *moody*) echo "{\"id\":$id,\"error\":\"no \\\"idea\\\"\"}" ;; *) echo "{\"id\":$id,\"reward\":-0.25}" ;; esac`)
	r := parseLabels(t, "accuracy,"+command+"=2", "law", "math")
	defer r.Close()
	expect.True(t, !r.Enumerable() && !r.ReadsProbs(), "enumerable %t, reads probabilities %t", r.Enumerable(), r.ReadsProbs())
	scores := must.Get(r.Score(t.Context(), []Choice{{"Who may sue?", 0, 0}, {"Count!", 0, 1}, {"moody", 1, 1}}))(t)
	expect.Equal(t, []float64{0.5, -0.5, nan}, scores.Total, cmpopts.EquateNaNs(), "totals")
	got := scores.Rewards[1]
	expect.True(t, got.Failures == 1 && strings.HasSuffix(got.Failure, `the program reports "no \"idea\""`), "%+v", got)
	want := `{"id":1,"text":"Who may sue?","predicted":"law","label":"law"}
{"id":2,"text":"Count!","predicted":"law","label":"math"}
{"id":3,"text":"moody","predicted":"math","label":"math"}
`
	expect.Equal(t, want, string(must.Get(os.ReadFile(filepath.Join(dir, "asked")))(t)), "questions")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Score(ctx, []Choice{{"Who?", 0, 0}})
	expect.True(t, errors.Is(err, context.Canceled), "the run is cancelled: %v", err)
}

// More questions than fit into a pipe, for a program that starts once.
func TestProgramAnswersLargeBatches(t *testing.T) {
	command, dir := shell(t, `[ "$id" = 1 ] && echo begun >> "$dir/begun"
`+good)
	r := parseText(t, command, nil, Options{})
	for range 2 {
		texts := slices.Repeat([]string{strings.Repeat("x", 1000)}, 300)
		scores, err := r.Score(t.Context(), completions(texts...), 1)
		expect.Require(t, err == nil && scores.Rewards[0].N == 300 && scores.Rewards[0].Mean == 1, "%+v, %v", scores.Rewards[0], err)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "begun"))
	expect.True(t, string(got) == "begun\n", "the program began %q", got)
}

const python = `
import json, sys
waiting = []
for line in sys.stdin:
    waiting.append(json.loads(line))
    if len(waiting) == 5:
        for q in reversed(waiting):
            text = q["text"]
            reward = float("nan") if text == "nan" else len(text) / 10
            print(json.dumps({"reward": reward, "id": q["id"], "extra": [1]}), flush=True)
        waiting = []
`

func TestProgramAnswersInAnyOrder(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	path := must.File(t, "judge.py", python)
	values, errs := judge(t, parseText(t, "cmd:python3 "+path, nil, Options{}), "a", "bb", "nan", "Ölöl\n", "", "1", "22", "333", "4444", "55555")
	expect.Equal(t, []float64{0.1, 0.2, nan, 0.5, 0, 0.1, 0.2, 0.3, 0.4, 0.5}, values, cmpopts.EquateNaNs(), "values")
	expect.Same(t, "the value is NaN", errs[2], "errors %q", errs)
}

func TestProgramsThatMisbehave(t *testing.T) {
	for _, test := range []struct {
		name, body string
		texts      []string
		want       []float64
		failure    string // of those that are NaN
	}{
		{"dies after every third answer", good + "\n" + `n=$((n+1)); [ $n = 3 ] && exit 1`, []string{"a", "b", "c", "d", "e", "f", "g"}, []float64{1, 1, 1, 1, 1, 1, 1}, ""},
		{"ends after every answer", good + "; exit 0", []string{"a", "b", "c"}, []float64{1, 1, 1}, ""},
		{"dies of one text", `case $line in *poison*) echo first >&2; echo "it is poison " >&2; exit 7 ;; esac; ` + good, []string{"a", "poison", "b", "c"}, []float64{1, nan, 1, 1},
			`the program exited without an answer: exit status 7; last line of standard error: "it is poison"`},
		{"dies of three texts in a row", `case $line in *poison*) exit 7 ;; esac; ` + good, []string{"a", "poison", "poison", "b", "poison", "c"}, []float64{1, nan, nan, 1, nan, 1},
			"the program exited without an answer: exit status 7"},
		{"chats", `case $line in *chat*) echo "let me see" ;; esac; ` + good, []string{"a", "chat", "b"}, []float64{1, nan, 1}, `invalid line "let me see"`},
		{"writes another kind of value", `case $line in *odd*) echo "{\"id\":$id,\"reward\":\"1\"}" ;; *) ` + good + " ;; esac", []string{"a", "odd", "b"}, []float64{1, nan, 1}, `invalid line "{\"id\":2,\"reward\":\"1\"}"`},
		{"writes a long line", `case $line in *long*) head -c 1100000 /dev/zero | tr '\0' x; echo ;; *) ` + good + " ;; esac", []string{"long", "b"}, []float64{nan, 1}, `invalid line "a line longer than 1048576 bytes"`},
		{"answers another question", `case $line in *other*) id=77 ;; esac; ` + good, []string{"a", "other", "b"}, []float64{1, nan, 1}, "reply to question 77"},
		{"answers twice", `case $line in *twice*) ` + good + " ;; esac; " + good, []string{"a", "b", "twice"}, []float64{1, 1, 1}, ""},
		{"has no answer", `case $line in *none*) echo "{\"id\":$id,\"reward\":null,\"error\":null}" ;; *) ` + good + " ;; esac", []string{"a", "none"}, []float64{1, nan}, "the reply has no reward"},
		{"is asked a long question", good, []string{strings.Repeat("x", 1<<20), "b"}, []float64{nan, 1}, "maximum 1048576"},
	} {
		t.Run(test.name, func(t *testing.T) {
			command, _ := shell(t, test.body)
			values, errs := judge(t, parseText(t, command, nil, Options{}), test.texts...)
			expect.Equal(t, test.want, values, cmpopts.EquateNaNs(), fmt.Sprintf("values:\n%q", errs))
			for i, err := range errs {
				failed := test.want[i] != test.want[i]
				expect.True(t, (!failed || strings.Contains(err, test.failure)) && (failed || err == ""), "sample %d: error %q, want one with %q", i, err, test.failure)
			}
		})
	}
}

func TestProgramThatNeverAnswersIsGivenUp(t *testing.T) {
	command, dir := shell(t, `echo begun >> "$dir/begun"; echo "no model" >&2; exit 3`)
	r := parseText(t, command, nil, Options{})
	for range 2 {
		scores := must.Get(r.Score(t.Context(), completions("a", "b", "c", "d", "e"), 1))(t)
		expect.True(t, scores.Rewards[0].Failures == 5 && scores.AllFailed() != nil, "%+v", scores.Rewards[0])
	}
	want := `the program was started 3 times without an answer; last error: the program exited without an answer: exit status 3; last line of standard error: "no model"`
	_, errs := judge(t, r, "a")
	expect.True(t, errs[0] == want, "got  %s\nwant %s", errs[0], want)
	got, _ := os.ReadFile(filepath.Join(dir, "begun"))
	expect.True(t, strings.Count(string(got), "begun") == 3, "the program began %d times, want 3", strings.Count(string(got), "begun"))
}

// held makes a FIFO that a program and its children hold open; the channel closes when all of them are gone.
func held(t *testing.T, dir string) <-chan struct{} {
	t.Helper()
	path := filepath.Join(dir, "held")
	must.Do(t, syscall.Mkfifo(path, 0o600))
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		must.Get(os.ReadFile(path))(t)
	}()
	return gone
}

func TestProgramThatHangsIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	command, dir := shell(t, `case $line in *hang*) exec 9> "$dir/held"; sleep 1000 & echo stuck >&2; wait ;; esac; `+good)
	gone := held(t, dir)
	var warnings []string
	r := parseText(t, command, nil, Options{Timeout: 2 * time.Second, Warn: func(line string) { warnings = append(warnings, line) }})
	values, errs := judge(t, r, "a", "hang", "hang", "b")
	expect.Equal(t, []float64{1, nan, nan, 1}, values, cmpopts.EquateNaNs(), fmt.Sprintf("values:\n%q", errs))
	expect.True(t, len(warnings) == 1 && strings.Contains(warnings[0], "--reward-timeout") && strings.Contains(warnings[0], "timeout after 2s"), "warnings %q, want one", warnings)
	expect.Same(t, `timeout after 2s; last line of standard error: "stuck"`, errs[1], "error")
	<-gone
}

// A program may handle one question after the other: time spent waiting for earlier questions does not count.
func TestSlowProgramIsWaitedFor(t *testing.T) {
	t.Parallel()
	command, _ := shell(t, "sleep 0.7; "+good)
	values, errs := judge(t, parseText(t, command, nil, Options{Timeout: 2 * time.Second}), "a", "b", "c", "d")
	expect.Equal(t, []float64{1, 1, 1, 1}, values, cmpopts.EquateNaNs(), fmt.Sprintf("values:\n%q", errs))
}

func TestProgramEndsWithTheContext(t *testing.T) {
	command, dir := shell(t, `case $line in *hang*) exec 9> "$dir/held"; sleep 1000 & echo > "$dir/asked"; wait ;; esac; `+good)
	gone := held(t, dir)
	asked := filepath.Join(dir, "asked")
	must.Do(t, syscall.Mkfifo(asked, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		must.Get(os.ReadFile(asked))(t)
		cancel()
	}()
	r := parseText(t, command, nil, Options{})
	_, err := r.Score(ctx, completions("a", "hang", "b"), 1)
	expect.True(t, errors.Is(err, context.Canceled), "error %v", err)
	<-gone
	values, errs := judge(t, r, "a")
	expect.True(t, values[0] == 1, "the next batch: %v, %q", values, errs)
}

func TestCloseLetsAProgramFinish(t *testing.T) {
	command, dir := shell(t, good+"\ndone\necho finished > \"$dir/finished\"\nwhile false; do :")
	r := parseText(t, command, nil, Options{})
	values, errs := judge(t, r, "a")
	expect.Require(t, values[0] == 1, "%v, %q", values, errs)
	r.Close()
	must.Get(os.Stat(filepath.Join(dir, "finished")))(t)
	r.Close()
	_, errs = judge(t, r, "a")
	expect.Same(t, "the program is closed", errs[0], "after Close: %q", errs)
}

func TestTextIsUsedByManyAtATime(t *testing.T) {
	command, _ := shell(t, `reward=0; case $line in *y*) reward=3 ;; esac; echo "{\"id\":$id,\"reward\":$reward}"`)
	r := parseText(t, "length,expr:length=2,"+command, map[string]envs.Reward{"length": lengthReward}, Options{})
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			var texts []string
			var want []float64
			for k := range 50 {
				text := strings.Repeat("x", i)
				total := 3 * float64(i)
				if k%3 == 0 {
					text, total = text+"y", total+3+3
				}
				texts, want = append(texts, text), append(want, total)
			}
			expect.Equal(t, want, must.Get(r.Score(t.Context(), completions(texts...), 4))(t).Total)
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"reward":0.5}`, `{"id":2,"reward":null,"error":"no"}`, `{"id":3,"reward": NaN}`, `{"id":4,"reward":-Infinity}`, `{"id":5}`, `{"reward":1}`,
		`{"id":1e3,"reward":1e999}`, "", "null", "[]", `{"id":-1}`, `{"id":18446744073709551615,"reward":-0.0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := decode(line)
		if err != nil || a.Err != nil {
			expect.True(t, !strings.ContainsAny(errors.Join(err, a.Err).Error(), "\n\r"), "the error has several lines: %v, %v", err, a.Err)
			return
		}
		expect.True(t, finite(a.Value), "value %v", a.Value)
		again := must.Get(json.Marshal(map[string]any{"id": a.ID, "reward": a.Value}))(t)
		expect.Result(decode(again))(t, a, "%s is read as %+v, %s as", line, a, again)
	})
}
