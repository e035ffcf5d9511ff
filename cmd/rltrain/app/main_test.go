package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// labels are the classifiers' labels.
var labels = []string{"animals", "law", "physics"}

// folders are a test's model folders; arguments and messages refer to them in capitals.
type folders struct{ model, base, tmp string }

func newFolders(t *testing.T, pooling string) folders {
	t.Helper()
	torchtest.NoLeaks(t)
	base := policytest.Encoder(t)
	return folders{model: policytest.Classifier(t, base, pooling, labels...), base: base, tmp: t.TempDir()}
}

func (f folders) expand(text string) string {
	return strings.NewReplacer("MODEL", f.model, "BASE", f.base, "TMP", f.tmp).Replace(text)
}

// rltrain runs the program in this process.
func (f folders) rltrain(stdin string, args ...string) (code int, stdout, stderr string) {
	argv := []string{"rltrain"}
	for _, a := range args {
		argv = append(argv, f.expand(a))
	}
	var out, errs bytes.Buffer
	code = Run(context.Background(), argv, nil, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// refused expects the program to fail with want in its error, as expect.Names has it.
func (f folders) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	code, _, stderr := f.rltrain("", args...)
	expect.True(t, code != 0 && expect.Names(errors.New(stderr), f.expand(want)), "%q: exit code %d, %q; want %q", args, code,
		stderr, want)
}

// usage is refused for a mistake in the call, with want in the last line.
func (f folders) usage(t *testing.T, want string, args ...string) {
	t.Helper()
	code, _, stderr := f.rltrain("", args...)
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	expect.True(t, code == shared.ExitUsage && strings.Contains(lines[len(lines)-1], f.expand(want)),
		"%q: exit code %d, %q; want %q", args, code, stderr, want)
}

// refusals are refused, usages are mistakes in the call: what follows prefix, and the text that the error has.
func (f folders) refusals(t *testing.T, prefix string, calls map[string]string) {
	t.Helper()
	for args, want := range calls {
		f.refused(t, want, strings.Fields(prefix+args)...)
	}
}

func (f folders) usages(t *testing.T, prefix string, calls map[string]string) {
	t.Helper()
	for args, want := range calls {
		f.usage(t, want, strings.Fields(prefix+args)...)
	}
}

// fails expects an error of one line and nothing else.
func (f folders) fails(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	got, stdout, stderr := f.rltrain("", args...)
	want = "rltrain: " + f.expand(want) + "\n"
	expect.True(t, got == code && stderr == want && stdout == "", "%q: exit code %d, printed %q\n got %swant %s", args, got,
		stdout, stderr, want)
}

var progress = regexp.MustCompile(`(?m)^.* ETA [0-9:]+\n`) // lines that are printed where the machine is slow

// must runs the program and fails the test on an error.
func (f folders) must(t *testing.T, stdin string, args ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := f.rltrain(stdin, args...)
	expect.Require(t, code == 0 && progress.ReplaceAllString(stderr, "") == "", "rltrain %s: exit code %d, error %q", strings.Join(args, " "), code, stderr)
	return stdout
}

func (f folders) write(t *testing.T, name, text string) {
	t.Helper()
	must.Write(t, f.expand(name), text)
}

// rows writes n rows, one a line.
func (f folders) rows(t *testing.T, name string, n int, row func(i int) string) {
	t.Helper()
	var all strings.Builder
	for i := range n {
		all.WriteString(row(i) + "\n")
	}
	f.write(t, name, all.String())
}

// lines reads a file of JSON lines.
func lines[T any](t *testing.T, path string) (all []T) {
	t.Helper()
	for line := range strings.Lines(must.Read(t, path)) {
		all = append(all, must.Into[T](t, json.Unmarshal, []byte(line)))
	}
	return all
}

func (f folders) edit(t *testing.T, name, old, new string) {
	t.Helper()
	text := must.Read(t, f.expand(name))
	expect.Require(t, strings.Contains(text, old), "%s has no %q", name, old)
	f.write(t, name, strings.Replace(text, old, new, 1))
}

func (f folders) remove(t *testing.T, name string) {
	t.Helper()
	must.Do(t, os.Remove(f.expand(name)))
}

// files lists every file below the folders.
func (f folders) files(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, root := range []string{f.model, f.base, f.tmp} {
		if root == "" {
			continue
		}
		must.Do(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			list = append(list, path)
			return err
		}))
	}
	return list
}

func TestUsageErrors(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	f.write(t, "TMP/plain.csv", "text,label\na cat,animals\n")
	for _, test := range []struct{ args, want string }{
		{"eval", "eval needs --model: the folder of a classifier, or a Hugging Face id"},
		{"compare --task chat MODEL MODEL", `--task: "chat" is none of intent, text, a_letter, agent, code, env, gsm8k, math, prompts, reverse_digits, sum_digits, preference`},
		{"eval --model MODEL --split dev", `--split: "dev" is not one of test, val, train, all`},
		{"eval --model MODEL --text-column q", "--text-column: needs --dataset FILE"},
		{"eval --model MODEL --dataset TMP/plain.csv --text-column label", `--label-column: is "label", as text_column is; name two columns`},
		{"eval --model MODEL --dataset TMP/plain.csv --split test", "--split test: TMP/plain.csv has no splits; use --split all, or add a column with train, val or test"},
		{"eval --model MODEL --max-samples 3", "--max-samples: 3 is below the number of labels; allow at least one row per label"},
		{"predict", "predict needs --model: the folder of a classifier, or a Hugging Face id"},
		{"predict --model MODEL --top 0", "--top: 0 is out of range; it must be at least 1"},
		{"predict --model MODEL --top 4", "--top: 4 is out of range; the model has 3 labels"},
		{"predict --model MODEL --threads -1", "--threads: -1 is out of range; it must be 0 to 1024"},
		{"merge --model MODEL", "merge needs --output-dir DIR for the merged model"},
		{"completion tcsh", `completion: unknown shell "tcsh"; choose bash, zsh or fish`},
	} {
		f.fails(t, shared.ExitUsage, test.want, strings.Fields(test.args)...)
	}
}

func TestExplain(t *testing.T) {
	_, usage := config.Load([]string{"--nonsense"}, nil)
	stopped := func(s syscall.Signal) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(interrupted{s})
		return ctx
	}
	for _, test := range []struct {
		ctx  context.Context
		err  error
		code int
		want string
	}{
		{context.Background(), nil, 0, ""},
		{context.Background(), errors.New("broken"), 1, "broken"},
		{context.Background(), fmt.Errorf("while loading: %w", usage), 2, "while loading: " + usage.Error()},
		{context.Background(), shared.UsageErrorf("--top: %d", 0), 2, "--top: 0"},
		{context.Background(), fmt.Errorf("printing: %w", syscall.EPIPE), 0, ""},
		{stopped(syscall.SIGINT), fmt.Errorf("ppo: %w", run.ErrStopped), 130, "ppo: stopped before the end; run the same command with --resume auto to continue"},
		{stopped(syscall.SIGTERM), run.ErrStopped, 143, "stopped before the end; run the same command with --resume auto to continue"},
		{stopped(syscall.SIGINT), fmt.Errorf("predicting: %w", context.Canceled), 130, "stopped by SIGINT"},
		{stopped(syscall.SIGTERM), errors.New("disk full"), 1, "disk full"},
		{stopped(syscall.SIGUSR1), run.ErrStopped, 138, "stopped before the end; run the same command with --resume auto to continue"},
		{stopped(syscall.SIGHUP), run.ErrStopped, 129, "stopped before the end; run the same command with --resume auto to continue"},
		{context.Background(), errors.Join(run.ErrStopped, syscall.EPIPE), 141, "stopped and saved: the output was closed; run the same command with --resume auto to continue"},
	} {
		code, message := explain(test.ctx, test.err)
		expect.True(t, code == test.code && message == test.want, "%v: got %d %q, want %d %q", test.err, code, message, test.code, test.want)
	}
}

func TestOneLine(t *testing.T) {
	for message, want := range map[string]string{
		"plain, with ü and 東":  "plain, with ü and 東",
		"two\nlines":           "two; lines",
		"tab\tand\x1b[31m red": `tab\tand\x1b[31m red`,
	} {
		expect.Same(t, want, shared.OneLine(message), "%q", message)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var f folders
	for args, want := range map[string]string{
		"":             "rltrain COMMAND --help",
		"--version":    "rltrain version " + shared.Version,
		"help compare": "rltrain compare [command options] DIR_A DIR_B",
		"merge -h":     "head.safetensors",
	} {
		out := f.must(t, "", strings.Fields(args)...)
		expect.True(t, strings.Contains(out, want), "%s: no %q in\n%s", args, want, out)
	}
}

func TestReport(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	f.write(t, "MODEL/run.json", `{"program": "rltrain", "task": "intent", "stage": "supervised", "status": "finished", "command": ["rltrain"],
		"versions": {}, "device": "cpu", "threads": 2, "cpu": "", "seed": 1, "started": "2025-01-02T03:04:05Z", "pid": 1}`)
	f.must(t, "", "eval", "--model", "MODEL", "--dataset", evalFile(t, f))
	expect.Same(t, f.expand("MODEL/report.html\n"), f.must(t, "", "report", "MODEL"), "must")
	expect.Contains(t, must.Read(t, f.expand("MODEL/report.html")), "intent: supervised", "<h2>Evaluation by rltrain eval</h2>",
		"<h3>reliability (rltrain eval)</h3>")
}

func TestCompletion(t *testing.T) {
	var f folders
	for shell, want := range map[string]string{
		"bash": "complete -o bashdefault -o default -F _rltrain rltrain",
		"zsh":  "compdef _rltrain rltrain",
		"fish": "complete -c rltrain -f -a '(__rltrain_complete)'",
	} {
		out := f.must(t, "", "completion", shell)
		expect.True(t, strings.Contains(out, want), "%s: no %q in\n%s", shell, want, out)
	}
}

// TestCompletionOfValues: after an option, shell completion offers the values the named task accepts.
func TestCompletionOfValues(t *testing.T) {
	var f folders
	tokens, labels := "", ""
	for _, d := range algo.Definitions() {
		if d.Tokens {
			tokens += d.Name + "\n"
		}
		if d.Labels {
			labels += d.Name + "\n"
		}
	}
	for args, want := range map[string]string{
		"--task":                              "agent\nchat\ncode\ndecisions\nenv\ngsm8k\nintent\nmath\npreference\nprompts\nreverse_digits\nsum_digits\ntext\n",
		"train --task sum_digits --algorithm": tokens,
		"--task intent --algorithm":           labels,
		"train --task=gsm8k --sym-calc":       "false\ntrue\n",
		"train --reinforce-loss =":            "distiller\non_policy\nreinforce\nstable\n",
		"generate --dtype":                    "auto\nbf16\nfp16\nfp32\n",
		"--dataset":                           "",
	} {
		got := f.must(t, "", append(strings.Fields(args), "--generate-bash-completion")...)
		got = strings.Replace(got, "a_letter\n", "", 1) // the other test's task
		expect.True(t, got == want, "%s: got %q, want %q", args, got, want)
	}
}

func TestSandboxCommand(t *testing.T) {
	var f folders
	if tiers := sandbox.Tiers(); len(tiers) == 0 || tiers[0] == sandbox.Unsafe {
		t.Skip("no sandbox works here")
	}
	for _, test := range []struct {
		program, options string
		want             sandbox.Status
		out              string
	}{
		{"print(6 * 7)", "", sandbox.OK, "42\n"},
		{"while True: pass", "--timeout 0.3", sandbox.Timeout, ""},
		{"raise SystemExit(3)", "", sandbox.Failed, ""},
	} {
		code, out, complaint := f.rltrain(test.program, append([]string{"sandbox"}, strings.Fields(test.options)...)...)
		if strings.Contains(complaint, "no interpreter") {
			t.Skip(complaint)
		}
		o := must.Into[sandbox.Outcome](t, json.Unmarshal, []byte(out))
		expect.True(t, code == 0 && strings.Count(out, "\n") == 1 && o.Status == test.want && o.Stdout == test.out && o.Tier == sandbox.Tiers()[0], "%s: %+v", test.program, o)
	}
	f.refusals(t, "sandbox ", map[string]string{
		"--timeout 0": "--timeout: 0 is out of range", "--memory-mb 1": "--memory-mb: 1", "--language cobol": `unknown language "cobol"`,
		"--tier unsafe": "pass --unsafe-exec", "--tier moon": `unknown tier "moon"`, "--interpreter /nowhere": "no interpreter for python",
		"--stdin /nowhere": "--stdin: open /nowhere", "more": "",
	})
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	yamlBlock  = regexp.MustCompile("(?ms)^```yaml\n(# rltrain --config FILE\n.*?)^```")
)

// documented returns the arguments of every rltrain command in a page's shell blocks. A real shell without programs
// expands them, so quotes, variables and continued lines mean what they mean to a reader.
func documented(t *testing.T, page string) [][]string {
	t.Helper()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	script := `rltrain() { printf '%s\0' "$@" >> "$CALLS"; printf '\n\0' >> "$CALLS"; }` + "\n"
	for _, block := range shellBlock.FindAllStringSubmatch(must.Read(t, page), -1) {
		script += strings.ReplaceAll(block[1], "./bin/rltrain", "rltrain") + "\nwait\n"
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	shell := exec.Command(bash, "-c", script)
	shell.Dir, shell.Env = dir, []string{"PATH=" + filepath.Join(dir, "none"), "CALLS=" + calls, "HOME=" + dir, "KEY=key"}
	shell.Run() // programs missing here are not the page's fault
	recorded, err := os.ReadFile(calls)
	if err != nil {
		return nil
	}
	var all [][]string
	for _, call := range strings.Split(strings.TrimSuffix(string(recorded), "\n\x00"), "\n\x00") {
		all = append(all, strings.Split(strings.TrimSuffix(call, "\x00"), "\x00"))
	}
	return all
}

// TestDocumentedCommands parses every rltrain command in the README and docs, and resolves the settings of training
// commands.
func TestDocumentedCommands(t *testing.T) {
	pages := must.Get(filepath.Glob("../../../docs/*.md"))(t)
	found := 0
	for _, page := range append(pages, "../../../README.md") {
		for _, args := range documented(t, page) {
			found++
			expect.NoError(t, parses(t, args), "%s: rltrain %s", filepath.Base(page), strings.Join(args, " "))
		}
	}
	expect.True(t, found >= 60, "only %d commands were found", found)
}

// TestDocumentedFiles resolves the settings of every YAML block that starts with "# rltrain --config FILE".
func TestDocumentedFiles(t *testing.T) {
	blocks := yamlBlock.FindAllStringSubmatch(must.Read(t, "../../../docs/from-trl.md"), -1)
	expect.Require(t, len(blocks) >= 2, "%d files were found", len(blocks))
	for _, block := range blocks {
		expect.NoError(t, parses(t, []string{"--config", must.File(t, "config.yaml", block[1])}), "%s", block[1])
	}
}

// parses returns the errors in a command's arguments, without running it.
func parses(t *testing.T, args []string) error {
	t.Helper()
	app := newApp(nil, strings.NewReader(""), io.Discard, io.Discard)
	for i, command := range app.Commands {
		if command.Name == "train" {
			app.Commands[i] = config.TrainCommand(nil, func(context.Context, *config.Config) error { return nil })
			continue
		}
		for _, c := range append(command.Subcommands, command) {
			c.Action = func(*cli.Context) error { return nil }
			if c.Name == "export" {
				c.Action = func(c *cli.Context) error { _, err := checkExport(c); return err }
			}
		}
	}
	argv, err := config.Arguments(app, append([]string{"rltrain"}, args...))
	if err != nil {
		return err
	}
	if len(argv) > 1 && app.Command(argv[1]) == nil && !strings.HasPrefix(argv[1], "-") {
		return fmt.Errorf("there is no command %s", argv[1])
	}
	return app.RunContext(t.Context(), argv)
}
