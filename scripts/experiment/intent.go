package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"rltrain/envs/dataset"
	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch/hub"
)

// intentExperiment is the intent classifier on the questions of MMLU-Pro: a supervised adapter tuned on
// validation, beside the same training in Python, then three ways to go on from it with the same rows.
type intentExperiment struct {
	source, peer, program, work, out string
	seeds                            int
	results                          intentResults
}

// intentResults is the content of the results file.
type intentResults struct {
	Data   string         `json:"data"`
	Rows   map[string]int `json:"rows"` // by split
	Base   string         `json:"base_model"`
	Chosen string         `json:"chosen"` // setting of "tune" with the best validation macro F1
	Runs   []intentRun    `json:"runs"`
}

// intentRun is one training run, on the test rows.
type intentRun struct {
	Setting    string         `json:"setting"`
	Seed       int            `json:"seed"`
	Options    []string       `json:"options"`
	CPUSeconds float64        `json:"cpu_seconds"`
	Updates    int            `json:"updates"`
	CutTexts   int            `json:"cut_texts"`
	ValF1      float64        `json:"val_f1_macro"`
	Test       figures        `json:"test"`
	Against    *rl.Comparison `json:"against_supervised,omitempty"` // paired, on the test rows
}

type figures struct {
	N          int     `json:"n"`
	Accuracy   float64 `json:"accuracy"`
	F1Macro    float64 `json:"f1_macro"`
	F1Weighted float64 `json:"f1_weighted,omitempty"`
	ECE        float64 `json:"ece"`
	Brier      float64 `json:"brier"`
}

const (
	maxRows   = 3000
	maxLength = 128
	splitSeed = 42
)

// Settings.
const (
	supervised = "supervised"
	peerRun    = "peer"
	continued  = "continued"
)

// tuned are the candidates for the supervised stage, one seed each, chosen by validation.
var tuned = []struct {
	name    string
	options []string
}{
	{"lr 1e-3", []string{"--learning-rate", "1e-3", "--head-learning-rate", "1e-3"}},
	{"lr 2e-3", []string{"--learning-rate", "2e-3", "--head-learning-rate", "2e-3"}},
}

// arms go on from the supervised checkpoint. The rollouts are smaller than the default: the whole experiment
// is to fit in 45 minutes of processor time.
var rlOptions = []string{"--rl-episodes", "2", "--buffer-size", "384", "--update-epochs", "2", "--rl-batch-size", "16"}

var arms = []string{"accuracy", "f1", "calibration"}

func (e *intentExperiment) run(ctx context.Context) error {
	data, err := e.split()
	if err != nil {
		return err
	}
	e.results.Data = "MMLU-Pro questions by category, balanced, cut at " + strconv.Itoa(maxLength) + " tokens"
	e.results.Base = "sentence-transformers/all-MiniLM-L6-v2"
	if err := e.load(); err != nil {
		return err
	}
	common := []string{"--dataset", data, "--max-length", strconv.Itoa(maxLength), "--save-steps", "1000"}
	best := ""
	var bestOptions []string
	bestF1 := -1.0
	for _, candidate := range tuned {
		r, err := e.train(ctx, "tune "+candidate.name, 0, join(common, []string{"--mode", "supervised"}, candidate.options), "supervised")
		if err != nil {
			return err
		}
		if r.ValF1 > bestF1 {
			best, bestF1, bestOptions = candidate.name, r.ValF1, candidate.options
		}
	}
	e.results.Chosen = best
	for seed := range e.seeds {
		options := join(common, []string{"--mode", "supervised"}, bestOptions)
		if err := e.supervise(ctx, seed, options); err != nil {
			return err
		}
		if e.peer != "" {
			if err := e.runPeer(ctx, data, seed, bestOptions); err != nil {
				return err
			}
		}
		start := e.start(seed)
		most := 0
		for _, reward := range arms {
			options := join(common, []string{"--mode", "rl_only", "--pretrained-model", start, "--reward", reward}, rlOptions)
			r, err := e.train(ctx, "rl "+reward, seed, options, "rl")
			if err != nil {
				return err
			}
			most = max(most, r.Updates)
		}
		// As many updates as the longest RL arm made, on as many rows each, at a tenth of the peak rates:
		// the cosine of the first run has ended at zero.
		options = join(common, []string{"--mode", "supervised", "--pretrained-model", start, "--max-steps", strconv.Itoa(most),
			"--batch-size", "16", "--learning-rate", "1e-4", "--head-learning-rate", "1e-4"})
		if _, err := e.train(ctx, continued, seed, options, "supervised"); err != nil {
			return err
		}
	}
	return e.save()
}

// supervise trains the checkpoint that the arms of a seed start from. That of seed 0 is the run that won the
// tuning.
func (e *intentExperiment) supervise(ctx context.Context, seed int, options []string) error {
	if seed > 0 {
		_, err := e.train(ctx, supervised, seed, options, "supervised")
		return err
	}
	if _, ok := e.find(supervised, seed); ok {
		return nil
	}
	r, _ := e.find("tune "+e.results.Chosen, 0)
	r.Setting = supervised
	return e.add(r)
}

// start is the folder of the checkpoint that the arms of a seed start from.
func (e *intentExperiment) start(seed int) string {
	setting := supervised
	if seed == 0 {
		setting = "tune " + e.results.Chosen
	}
	return filepath.Join(e.folder(setting, seed), "intent_classifier_supervised")
}

func join(lists ...[]string) []string {
	var all []string
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// split writes the rows with their parts to a file that our program and the peer both read.
func (e *intentExperiment) split() (string, error) {
	path := filepath.Join(e.work, "split.jsonl")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if e.source == "" {
			return "", fmt.Errorf("--source FILE is needed to write %s", path)
		}
		rows, err := dataset.Read(e.source, dataset.Columns{Text: "question", Label: "category"})
		if err != nil {
			return "", err
		}
		train, val, test := dataset.Split(dataset.Balance(rows, maxRows), splitSeed)
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		for _, r := range join3(train, val, test) {
			if err := encoder.Encode(map[string]string{"text": r.Text, "label": r.Label, "split": r.Split}); err != nil {
				return "", err
			}
		}
		if err := os.MkdirAll(e.work, 0o755); err != nil {
			return "", err
		}
		if err := rl.WriteFileAtomic(path, b.Bytes(), 0o644); err != nil {
			return "", err
		}
	}
	rows, err := dataset.Read(path, dataset.Columns{})
	if err != nil {
		return "", err
	}
	e.results.Rows = map[string]int{}
	for _, r := range rows {
		e.results.Rows[r.Split]++
	}
	return path, nil
}

func join3(a, b, c []dataset.Row) []dataset.Row {
	return append(append(append([]dataset.Row{}, a...), b...), c...)
}

// load reads the runs of an earlier call.
func (e *intentExperiment) load() error {
	var old intentResults
	if err := rl.LoadJSON(e.out, &old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.results.Runs = old.Runs
	return nil
}

func (e *intentExperiment) save() error {
	if err := os.MkdirAll(filepath.Dir(e.out), 0o755); err != nil {
		return err
	}
	return rl.SaveJSON(e.out, e.results)
}

func (e *intentExperiment) find(setting string, seed int) (intentRun, bool) {
	for _, r := range e.results.Runs {
		if r.Setting == setting && r.Seed == seed {
			return r, true
		}
	}
	return intentRun{}, false
}

func (e *intentExperiment) add(r intentRun) error {
	e.results.Runs = append(e.results.Runs, r)
	fmt.Printf("%-22s seed %d  accuracy %.4f  F1 %.4f  ECE %.4f  Brier %.4f  %4d updates  %5.0f s of processor time\n",
		r.Setting, r.Seed, r.Test.Accuracy, r.Test.F1Macro, r.Test.ECE, r.Test.Brier, r.Updates, r.CPUSeconds)
	return e.save()
}

func (e *intentExperiment) folder(setting string, seed int) string {
	return filepath.Join(e.work, strings.NewReplacer(" ", "_", ",", "").Replace(setting)+"-"+strconv.Itoa(seed))
}

// train runs the program for one (setting, seed), unless the results have it already.
func (e *intentExperiment) train(ctx context.Context, setting string, seed int, options []string, stage string) (intentRun, error) {
	if r, ok := e.find(setting, seed); ok {
		return r, nil
	}
	dir := e.folder(setting, seed)
	options = join(options, []string{"--seed", strconv.Itoa(seed)})
	cpu, _, err := e.command(ctx, e.program, join(options, []string{"--output-dir", dir})...)
	if err != nil {
		return intentRun{}, fmt.Errorf("%s, seed %d: %w", setting, seed, err)
	}
	model := filepath.Join(dir, "intent_classifier_"+stage)
	r := intentRun{Setting: setting, Seed: seed, Options: e.portable(options), CPUSeconds: cpu}
	var eval struct {
		Cut int `json:"cut_texts"`
		figures
	}
	data, err := os.ReadFile(filepath.Join(model, "logs", "eval_results.json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &eval); err != nil {
		return r, err
	}
	r.Test, r.CutTexts = eval.figures, eval.Cut
	rows, err := report.ReadMetrics(filepath.Join(model, "logs", "metrics.jsonl"))
	if err != nil {
		return r, err
	}
	for _, row := range rows {
		if step, ok := row["step"].(float64); ok {
			r.Updates = max(r.Updates, int(step))
		}
		if f1, ok := row["eval_f1_macro"].(float64); ok {
			r.ValF1 = max(r.ValF1, f1)
		}
	}
	if setting != supervised && !strings.HasPrefix(setting, "tune ") {
		if r.Against, err = e.compare(ctx, seed, model); err != nil {
			return r, err
		}
	}
	return r, e.add(r)
}

// portable leaves the work folder out of recorded options.
func (e *intentExperiment) portable(options []string) []string {
	out := make([]string, len(options))
	for i, o := range options {
		out[i] = strings.Replace(o, e.work, "WORK", 1)
	}
	return out
}

// compare measures a run against the supervised checkpoint it came from, on the same test rows.
func (e *intentExperiment) compare(ctx context.Context, seed int, model string) (*rl.Comparison, error) {
	file := filepath.Join(e.work, "comparison.json")
	start := e.start(seed)
	if _, _, err := e.command(ctx, e.program, "compare", start, model, "--dataset", filepath.Join(e.work, "split.jsonl"), "--output", file); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c struct {
		Comparison rl.Comparison `json:"comparison"`
	}
	return &c.Comparison, json.Unmarshal(data, &c)
}

// runPeer trains the Python peer on the same rows with the same rates.
func (e *intentExperiment) runPeer(ctx context.Context, data string, seed int, options []string) error {
	if _, ok := e.find(peerRun, seed); ok {
		return nil
	}
	model, _, err := hub.Resolve(e.results.Base)
	if err != nil {
		return err
	}
	words := strings.Fields(e.peer)
	args := join(words[1:], []string{"--model", model, "--data", data, "--seed", strconv.Itoa(seed), "--max-length", strconv.Itoa(maxLength),
		"--lr", options[1], "--head-lr", options[3]})
	cpu, output, err := e.command(ctx, words[0], args...)
	if err != nil {
		return fmt.Errorf("peer, seed %d: %w", seed, err)
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	r := intentRun{Setting: peerRun, Seed: seed, Options: []string{"--lr", options[1], "--head-lr", options[3]}, CPUSeconds: cpu}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r.Test); err != nil {
		return fmt.Errorf("peer, seed %d: its last line is not JSON: %w", seed, err)
	}
	return e.add(r)
}

// command runs a program and returns its processor time in seconds and its standard output.
func (e *intentExperiment) command(ctx context.Context, name string, args ...string) (float64, string, error) {
	c := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return 0, "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), stdout.String(), nil
}
