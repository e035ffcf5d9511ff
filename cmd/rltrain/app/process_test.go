package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/agent/agenttest"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// asProgram makes this test binary run the program, so that tests can kill it.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		Main()
	}
	os.Exit(torchtest.Run(m))
}

// recipe is a short run to kill.
type recipe struct {
	stage string // its folder, with * for the time in its name
	args  string
	steps int
}

// in returns the run's folder in out.
func (r recipe) in(out string) string {
	if found, _ := filepath.Glob(filepath.Join(out, r.stage)); len(found) == 1 {
		return found[0]
	}
	return filepath.Join(out, r.stage)
}

// recipes are runs of each algorithm on tiny models. START is a language model, CHAT one with a chat template, AGENT an agent,
// BASE an encoder, ROWS labelled texts, PAIRS preferences, and WORDS preferences in words the encoder knows.
var recipes = map[string]recipe{
	"sft": {"sum_digits_supervised", `--task sum_digits --mode supervised --tiny-layers 1 --tiny-hidden 32 --max-steps 24 --batch-size 4 --warmup-check-every 8
		--warmup-until 1 --eval-samples 16 --max-new-tokens 12`, 24},
	"sft of labels":      {"intent_classifier_supervised", `--mode supervised --model BASE --dataset ROWS --epochs 6 --batch-size 8`, 24},
	"reinforce":          {"sum_digits_rl", tokenArgs + ` --algorithm reinforce --baseline batch`, 8},
	"replay":             {"sum_digits_rl", strings.Replace(tokenArgs, "--samples-per-prompt 4", "--num-update-steps 8 --rl-batch-size 4", 1) + ` --algorithm reinforce --reinforce-loss stable`, 8},
	"rloo":               {"sum_digits_rl", tokenArgs + ` --algorithm rloo --kl-coef 0.05`, 8},
	"grpo":               {"sum_digits_rl", tokenArgs + ` --algorithm grpo --update-epochs 2 --minibatches 2`, 8},
	"grpo ahead":         {"sum_digits_rl", tokenArgs + ` --algorithm grpo --async --max-staleness 2`, 8},
	"ppo":                {"sum_digits_rl", tokenArgs + ` --algorithm ppo --update-epochs 2`, 8},
	"a2c":                {"sum_digits_rl", tokenArgs + ` --algorithm a2c`, 8},
	"dpo of own samples": {"sum_digits_rl", tokenArgs + ` --algorithm dpo`, 8},
	"distill":            {"sum_digits_rl", tokenArgs + ` --algorithm distill --teacher START --divergence jsd`, 8},
	"grpo of programs": {"code_rl", `--task code --mode rl_only --pretrained-model START --algorithm grpo --num-steps 6 --eval-every 3 --prompts-per-step 2 --samples-per-prompt 2
		--eval-samples 4 --fresh-samples 2 --max-new-tokens 12 --max-turns 2 --reward tests,style=0.1`, 6},
	"agents": {"agent_rl", `--task agent --agent AGENT --mode rl_only --pretrained-model CHAT --algorithm grpo --num-steps 8 --eval-every 3 --prompts-per-step 2
		--samples-per-prompt 4 --eval-samples 4 --fresh-samples 2 --max-new-tokens 4`, 8},
	"reinforce of labels": {"intent_classifier_rl", labelArgs + ` --algorithm reinforce`, 4},
	"rloo of labels":      {"intent_classifier_rl", labelArgs + ` --algorithm rloo`, 4},
	"grpo of labels":      {"intent_classifier_rl", labelArgs + ` --algorithm grpo --update-epochs 2`, 4},
	"ppo of labels":       {"intent_classifier_rl", labelArgs + ` --algorithm ppo --update-epochs 2`, 4},
	"a2c of labels":       {"intent_classifier_rl", labelArgs + ` --algorithm a2c`, 4},
	"dqn of labels":       {"intent_classifier_rl", labelArgs + ` --algorithm dqn`, 4},
	"dqn of texts": {"classification_dqn_*", `--task text --model BASE --policy head --dataset ROWS --rl-episodes 8 --eval-every 3 --buffer-size 16 --rl-batch-size 8
		--samples-per-prompt 2 --algorithm dqn`, 8},
	"decisions": {"decisions_rl", `--task decisions --mode supervised_then_rl --model BASE --dataset ROWS --epochs 1 --batch-size 8 --rl-episodes 4 --buffer-size 16 --rl-batch-size 4
		--feedback chosen --reward calibration`, 4},
	"grpo of decisions": {"decisions_rl", `--task decisions --mode rl_only --model BASE --dataset ROWS --rl-episodes 4 --buffer-size 16 --rl-batch-size 4
		--feedback chosen --reward accuracy --algorithm grpo --samples-per-prompt 2 --update-epochs 2`, 4},
	"dpo":          {"preference_rl", pairArgs + ` --algorithm dpo --model START --loss-type sigmoid,sft --loss-weights 1,0.1`, 12},
	"kto":          {"preference_rl", pairArgs + ` --algorithm dpo --model START --loss-type kto --precompute-ref`, 24},
	"reward model": {"preference_reward", strings.Replace(pairArgs, "PAIRS", "WORDS", 1) + ` --mode reward_model --model BASE`, 12},
}

const labelArgs = `--mode supervised_then_rl --model BASE --dataset ROWS --epochs 1 --batch-size 8 --rl-episodes 4 --buffer-size 16 --rl-batch-size 4
		--reward accuracy,f1=0.1`

const pairArgs = `--dataset PAIRS --validation-share 0.25 --epochs 2 --batch-size 8`

const tokenArgs = `--task sum_digits --mode rl_only --pretrained-model START --num-steps 8 --eval-every 3 --prompts-per-step 4 --samples-per-prompt 4
		--eval-samples 16 --fresh-samples 4 --max-new-tokens 12 --reward expr:'length'`

// lab holds the folders of a test's runs.
type lab struct{ folders }

func newLab(t *testing.T) lab {
	t.Helper()
	f := folders{tmp: t.TempDir(), base: policytest.Encoder(t)}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	must.Do(t, policy.TinyChatModel(f.expand("TMP/chat"), 1, 32, 1))
	f.labelled(t, "TMP/rows.csv")
	f.write(t, "TMP/pairs.jsonl", pairsOfLetters(64))
	f.write(t, "TMP/words.jsonl", strings.NewReplacer(`"chosen": "`, `"chosen": "law the `, `"rejected": "`, `"rejected": "of cat `).Replace(pairsOfLetters(64)))
	return lab{f}
}

// labelled writes 60 different texts with labels.
func (f folders) labelled(t *testing.T, name string) {
	t.Helper()
	f.rows(t, name, 61, func(i int) string {
		if i == 0 {
			return "text,label"
		}
		return strings.Repeat("the ", i%9) + strings.Repeat("of ", i/9) + []string{"cat,animals", "law,law", "force,physics"}[i%3]
	})
}

// start starts the program as a process. wait returns its exit code (128 + the signal's number if a signal ended it)
// and its output.
func (l lab) start(t *testing.T, r recipe, out string, more ...string) (*os.Process, func() (int, string)) {
	t.Helper()
	return l.startWith(t, r, out, nil, more...)
}

func (l lab) startWith(t *testing.T, r recipe, out string, environ []string, more ...string) (*os.Process, func() (int, string)) {
	t.Helper()
	cmd := l.command(t, r, out, more...)
	cmd.Env = append(cmd.Env, environ...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must.Do(t, cmd.Start())
	return cmd.Process, func() (int, string) { return exitCode(t, cmd), output.String() }
}

// exitCode waits for the end of a process: its exit code, or 128 + the number of the signal that ended it.
func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	expect.Require(t, err == nil || errors.As(err, &exit), "%v", err)
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// command is a call of the program.
func (l lab) command(t *testing.T, r recipe, out string, more ...string) *exec.Cmd {
	t.Helper()
	args := []string{"--threads", "1", "--save-total-limit", "3", "--logging-steps", "1", "--keep-completions", "-1", "--report-to", "tensorboard", "--output-dir", out}
	if !slices.Contains(more, "--save-steps") {
		more = append(more, "--save-steps", "2")
	}
	agent := must.Get(agenttest.Command())(t)
	for _, arg := range strings.Fields(r.args) {
		args = append(args, strings.NewReplacer("AGENT", agent, "CHAT", l.tmp+"/chat", "START", l.tmp+"/start", "BASE", l.base, "ROWS", l.tmp+"/rows.csv", "PAIRS", l.tmp+"/pairs.jsonl", "WORDS", l.tmp+"/words.jsonl", "'", "").Replace(arg))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, more...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "OMP_NUM_THREADS=1")
	return cmd
}

// finish runs the program to the end and returns the time it took.
func (l lab) finish(t *testing.T, r recipe, out string, more ...string) time.Duration {
	t.Helper()
	began := time.Now()
	_, wait := l.start(t, r, out, more...)
	code, output := wait()
	expect.Require(t, code == 0, "exit code %d:\n%s", code, output)
	return time.Since(began)
}

// kills counts kills by the state of the run.
type kills struct{ all, early, writing, late int }

// kill starts or resumes the run and kills it after a time, or as soon as now returns true. It reports whether the
// process was hit.
func (l lab) kill(t *testing.T, r recipe, out string, after time.Duration, now func() bool, k *kills) bool {
	t.Helper()
	process, wait := l.start(t, r, out, "--resume=auto")
	ended := make(chan struct{})
	code, output := 0, ""
	go func() {
		defer close(ended)
		code, output = wait()
	}()
	timer := time.NewTimer(after)
	defer timer.Stop()
	poll := time.NewTicker(200 * time.Microsecond)
	defer poll.Stop()
	for hit := false; !hit; {
		select {
		case <-ended:
			hit = true
		case <-timer.C:
			hit = true
		case <-poll.C:
			hit = now()
		}
	}
	_ = process.Kill() // it may have finished
	<-ended
	if code == 0 {
		return false
	}
	expect.Require(t, code == 128+int(syscall.SIGKILL), "exit code %d:\n%s", code, output)
	k.all++
	checkpoint, step, _, err := run.LatestCheckpoint(r.in(out))
	switch {
	case err != nil:
		t.Fatal(err)
	case l.writing(r, out):
		k.writing++
	case checkpoint == "":
		k.early++
	case step >= r.steps:
		k.late++
	}
	return true
}

// writing reports whether a checkpoint was being written when the process died.
func (l lab) writing(r recipe, out string) bool {
	found, _ := filepath.Glob(filepath.Join(out, r.stage+"*", "checkpoints", "*.tmp"))
	return len(found) > 0
}

// TestKilled kills a run of some algorithms twice, once while it writes a checkpoint, and resumes it. The result must
// equal an uninterrupted run. "make crash" does the same for all algorithms and many more moments.
func TestKilled(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"sft", "ppo", "grpo", "dpo", "dqn of labels", "decisions", "agents"} {
		t.Run(name, func(t *testing.T) {
			r, k := recipes[name], kills{}
			whole, parts := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
			l.finish(t, r, whole)
			halfWay := func() bool {
				rows, _ := os.ReadFile(filepath.Join(r.in(parts), "logs", "metrics.jsonl"))
				return bytes.Count(rows, []byte("\n")) > r.steps/2
			}
			expect.Require(t, l.kill(t, r, parts, 5*time.Minute, halfWay, &k), "the run was not hit")
			l.kill(t, r, parts, 5*time.Minute, func() bool { return l.writing(r, parts) }, &k)
			l.finish(t, r, parts, "--resume=auto")
			compareRuns(t, r, whole, parts)
		})
	}
}

// spent matches the timings in a step's line.
var spent = regexp.MustCompile(`(gen|train)=\d+ms`)

// compareRuns compares the files of two runs of a stage byte by byte, without timings and names of folders and
// processes.
func compareRuns(t *testing.T, r recipe, whole, parts string) (compared int) {
	t.Helper()
	a, b := r.in(whole), r.in(parts)
	newest, step, _, err := run.LatestCheckpoint(a)
	expect.Require(t, err == nil && step != 0, "the newest checkpoint: step %d, %v", step, err)
	last, _ := filepath.Rel(a, newest)
	err = filepath.WalkDir(a, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(a, path)
		base := filepath.Base(name)
		switch {
		case err != nil:
			return err
		case slices.Contains([]string{"run.json", "config.yaml", "README.md", "manifest.json", "offsets.json"}, base), strings.HasPrefix(base, "events.out"):
			return nil // these name the folder, or hold times, or lengths and hashes of files with times
		case strings.HasPrefix(name, "checkpoints/") && filepath.Dir(name) != last:
			return nil // which older checkpoints exist depends on where the run stopped
		}
		compared++
		want, got := timeless(t, path, a), timeless(t, filepath.Join(b, name), b)
		if bytes.Equal(want, got) {
			return nil
		}
		if strings.Contains(".jsonl.json.txt", filepath.Ext(name)) {
			t.Errorf("%s differs (-uninterrupted +resumed):\n%s", name, cmp.Diff(string(want), string(got)))
		} else {
			t.Errorf("%s differs", name)
		}
		return nil
	})
	must.Do(t, err)
	expect.True(t, compared >= 8, "only %d files were compared", compared)
	return compared
}

// timeless is a file's content without timings, with placeholders for the run's folder and its parent.
func timeless(t *testing.T, path, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	out := filepath.Dir(dir)
	data = bytes.ReplaceAll(data, []byte(filepath.Base(dir)), []byte("STAGE"))
	switch filepath.Base(path) {
	case "metrics.jsonl", "eval_results.json":
	case "training_log.txt", "adapter_config.json", "comparison.json":
		return bytes.ReplaceAll(spent.ReplaceAll(data, nil), []byte(out), []byte("OUT"))
	default:
		return bytes.ReplaceAll(data, []byte(out), []byte("OUT"))
	}
	var kept []byte
	for decoder := json.NewDecoder(bytes.NewReader(data)); decoder.More(); {
		var row map[string]json.RawMessage // values stay as written: every digit counts
		err = decoder.Decode(&row)
		expect.Require(t, err == nil, "%s: %v", path, err)
		for key := range row {
			if strings.HasPrefix(key, "time/") || strings.HasPrefix(key, "latency_") || key == "model" {
				delete(row, key)
			}
		}
		line, err := json.Marshal(row)
		expect.Require(t, err == nil, "%s: %v", path, err)
		kept = append(append(kept, line...), '\n')
	}
	return kept
}
