package app

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestAlarmsOfRuns provokes each alarm with a run that fails in that way. Each alarm is logged once, with advice; a
// healthy run raises none.
func TestAlarmsOfRuns(t *testing.T) {
	const (
		letters = `--task prompts --dataset TMP/letters.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --prompts-per-step 4 --samples-per-prompt 8 --fresh-samples 0 --eval-samples 30 --eval-every 99 `
		one     = letters + `--max-new-tokens 1 `
		several = letters + `--max-new-tokens 16 --stop a,b,c,d,e,f,g,h `
		fast    = `--rl-learning-rate 0.02 `
	)
	f := folders{tmp: t.TempDir()}
	f.alarming(t)
	limit := []string{"missing_end", "truncation"} // one token is too few to end a completion
	for _, test := range []struct {
		name, args string
		want       []string
	}{
		{"all earn the same", one + `--num-steps 6 --allow-no-signal --reward expr:'1'`, append([]string{"equal_rewards"}, limit...)},
		{"a kind that is never right", one + fast + `--num-steps 14 --kind-column sort`, []string{"equal_rewards", "missing_end", "never_right", "truncation"}},
		{"shorter and shorter", several + fast + `--num-steps 40 --reward expr:'-length'`, []string{"equal_rewards", "length_drift", "tier_drift"}},
		{"one reward dominates", several + `--num-steps 6 --reward expr:'length',expr:'text~contains~"b"'=0.1`, []string{"dominant_reward"}},
		{"far from the reference", one + `--rl-learning-rate 0.05 --num-steps 25 --kl-coef 0.001 --reward expr:'text~in~["a","e","i"]'`, []string{"equal_rewards", "kl", "missing_end", "strict", "truncation"}},
		{"judgements that fail", one + `--num-steps 2 --reward cmd:sh~TMP/failing.sh`, []string{"failed_rewards"}},
		{"what is right is not paid any more", one + fast + `--num-steps 50 --allow-no-signal --reward cmd:sh~TMP/turning.sh`, []string{"collapse", "equal_rewards", "missing_end", "strict", "truncation"}},
		{"texts learnt by heart", `--task chat --dataset TMP/noise.jsonl --model tiny --tiny-layers 1 --tiny-hidden 64 --epochs 16 --learning-rate 0.01 --lr-scheduler-type constant_with_warmup --validation-share 0.5 --batch-size 4`, []string{"overfitting"}},
		{"well", several + `--num-steps 12 --reward expr:'text~contains~"b"'`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			args := strings.Fields(f.expand(test.args) + " --output-dir " + out)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~", " ")
			}
			f.says(t, "", args...)
			logs, err := filepath.Glob(filepath.Join(out, "*", "logs", "training_log.txt"))
			expect.Require(t, err == nil && len(logs) == 1, "%q, %v", logs, err)
			log := must.Get(os.ReadFile(logs[0]))(t)
			var got []string
			for _, alarm := range regexp.MustCompile(`(?m)^warning: (\w+): (.*)$`).FindAllStringSubmatch(string(log), -1) {
				got = append(got, alarm[1])
				expect.True(t, regexp.MustCompile(`^(add|choose|fix|hold out|go back|lower|raise|read|train|try|use) .*: `).MatchString(alarm[2]), "no advice comes first in %q", alarm[0])
			}
			slices.Sort(got)
			diff := cmp.Diff(test.want, got)
			expect.True(t, diff == "", "alarms (-want +got):\n%s\n%s", diff, log)
		})
	}
}

// alarming writes the data and reward programs of TestAlarmsOfRuns.
func (f folders) alarming(t *testing.T) {
	t.Helper()
	var letters, noise strings.Builder
	for i := range 60 {
		fmt.Fprintf(&letters, "{\"prompt\":\"Name a letter, question %d: \",\"answer\":%q,\"sort\":%q}\n", i, []string{"a", "zz"}[i%2], []string{"short", "long"}[i%2])
	}
	const code = "bdfaecfdabcaefdcbeadfcbaedfbcdeafcbdaefc"
	for i := range 24 {
		fmt.Fprintf(&noise, "{\"text\":%q}\n", code[i:i+8]+code[(7*i)%30:(7*i)%30+4])
	}
	answering := func(reward string) string {
		return "n=0\nwhile IFS= read -r line; do\n n=$((n+1)); id=${line#*:}; id=${id%%,*}; r=0\n " + reward + "\ndone\n"
	}
	say := `echo "{\"id\":$id,\"reward\":$r}"`
	f.write(t, "TMP/letters.jsonl", letters.String())
	f.write(t, "TMP/noise.jsonl", noise.String())
	f.write(t, "TMP/failing.sh", answering(`if [ $((n % 5)) = 0 ]; then echo "{\"id\":$id,\"error\":\"no\"}"; else r=$((n % 3)); `+say+"; fi"))
	f.write(t, "TMP/turning.sh", answering(`case $line in *'"text":"a"'*) r=1 ;; esac; [ $n -gt 800 ] && r=$((1 - r)); `+say))
}
