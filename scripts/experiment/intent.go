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
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

// intentExperiment is the intent classifier on the questions of MMLU-Pro: a supervised adapter tuned on validation rows, the
// same training in Python, and several ways to continue from a checkpoint with more rows.
type intentExperiment struct {
	*experiment
	source, peer string
	results      intentResults
}

// intentResults is the content of the results file.
type intentResults struct {
	Data   string         `json:"data"`
	Rows   map[string]int `json:"rows"` // by split
	Base   string         `json:"base_model"`
	Chosen string         `json:"chosen"` // setting of "tune" with the best validation macro F1
	Runs   []intentRun    `json:"runs"`
	// Pooled compares the runs of a setting with their starting checkpoints, over all seeds.
	Pooled map[string]rl.Comparison `json:"pooled_against_start"`
}

// intentRun is one training run, evaluated on the test rows.
type intentRun struct {
	Setting    string         `json:"setting"`
	Seed       int            `json:"seed"`
	Options    []string       `json:"options"`
	CPUSeconds float64        `json:"cpu_seconds"`
	Updates    int            `json:"updates"`
	CutTexts   int            `json:"cut_texts"`
	ValF1      float64        `json:"val_f1_macro"`
	Test       figures        `json:"test"`
	Against    *rl.Comparison `json:"against_start,omitempty"` // paired, on the test rows
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
	checkpoint = "checkpoint"
	peerRun    = "peer"
	continued  = "continued"
)

// tuned are the candidate settings of SFT, with one seed each; validation selects one.
var tuned = []struct {
	name    string
	options []string
}{
	{"lr 1e-3", []string{"--learning-rate", "1e-3", "--head-learning-rate", "1e-3"}},
	{"lr 2e-3", []string{"--learning-rate", "2e-3", "--head-learning-rate", "2e-3"}},
}

// rlOptions: one episode of two epochs, to fit the experiment in 45 minutes of CPU time.
var rlOptions = []string{"--rl-episodes", "1", "--update-epochs", "2", "--rl-batch-size", "16"}

var rewards = []string{"accuracy", "f1", "calibration"}

func (e *intentExperiment) run(ctx context.Context) error {
	if err := e.split(); err != nil {
		return err
	}
	e.results.Data = "MMLU-Pro questions by category, balanced, cut at " + strconv.Itoa(maxLength) + " tokens"
	e.results.Base = "sentence-transformers/all-MiniLM-L6-v2"
	if err := e.load(); err != nil {
		return err
	}
	common := []string{"--max-length", strconv.Itoa(maxLength), "--save-steps", "1000"}
	all := slices.Concat(common, []string{"--dataset", e.file(allRows), "--mode", "supervised"})
	best := ""
	var rates []string
	bestF1 := -1.0
	for _, candidate := range tuned {
		r, err := e.train(ctx, "tune "+candidate.name, 0, slices.Concat(all, candidate.options), "supervised", "")
		if err != nil {
			return err
		}
		if r.ValF1 > bestF1 {
			best, bestF1, rates = candidate.name, r.ValF1, candidate.options
		}
	}
	e.results.Chosen = best
	for _, seed := range e.eachSeed() {
		if err := e.arms(ctx, seed, common, rates); err != nil {
			return err
		}
	}
	for _, seed := range e.eachSeed() {
		if err := e.supervise(ctx, seed, slices.Concat(all, rates)); err != nil {
			return err
		}
		if e.peer != "" {
			if err := e.runPeer(ctx, seed, rates); err != nil {
				return err
			}
		}
	}
	if err := e.pool(ctx); err != nil {
		return err
	}
	return save(e.out, e.results)
}

// pool compares each arm with the checkpoints, over all seeds.
func (e *intentExperiment) pool(ctx context.Context) error {
	rows, err := dataset.Read(e.file(allRows), dataset.Columns{})
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r dataset.Row) bool { return r.Split != dataset.Test })
	labels := map[string]int{}
	var truth []int
	for _, r := range rows {
		if _, ok := labels[r.Label]; !ok {
			labels[r.Label] = len(labels)
		}
		truth = append(truth, labels[r.Label])
	}
	predictions := func(setting, stage string) (all [][][]float32, err error) {
		for _, seed := range e.eachSeed() {
			probs, err := e.predict(ctx, filepath.Join(e.folder(setting, seed), "intent_classifier_"+stage), rows, labels)
			if err != nil {
				return nil, fmt.Errorf("%s, seed %d: %w", setting, seed, err)
			}
			all = append(all, probs)
		}
		return all, nil
	}
	start, err := predictions(checkpoint, "supervised")
	if err != nil {
		return err
	}
	e.results.Pooled = map[string]rl.Comparison{}
	arms := []string{continued}
	for _, reward := range rewards {
		arms = append(arms, "rl "+reward)
	}
	for _, arm := range arms {
		stage := "rl"
		if arm == continued {
			stage = "supervised"
		}
		probs, err := predictions(arm, stage)
		if err != nil {
			return err
		}
		e.results.Pooled[arm] = rl.CompareRuns(len(labels), truth, start, probs)
	}
	return nil
}

// predict is the probabilities that the model in dir assigns to the labels of each row.
func (e *intentExperiment) predict(ctx context.Context, dir string, rows []dataset.Row, labels map[string]int) ([][]float32, error) {
	var input strings.Builder
	for _, r := range rows {
		input.WriteString(strings.Join(strings.Fields(r.Text), " ") + "\n") // one text per line
	}
	command := exec.CommandContext(ctx, e.program, "predict", "--model", dir, "--json", "--top", strconv.Itoa(len(labels)))
	command.Stdin, command.Stderr = strings.NewReader(input.String()), os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("predicting with %s: %w", dir, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(output))
	probs := make([][]float32, len(rows))
	for i := range probs {
		var line struct {
			Top []struct {
				Label       string  `json:"label"`
				Probability float32 `json:"probability"`
			} `json:"top"`
		}
		if err := decoder.Decode(&line); err != nil {
			return nil, fmt.Errorf("predictions of %s: %w", dir, err)
		}
		probs[i] = make([]float32, len(labels))
		for _, p := range line.Top {
			probs[i][labels[p.Label]] = p.Probability
		}
	}
	return probs, nil
}

// arms trains a checkpoint on three quarters of the training rows, and continues from it in four ways on the last quarter.
// Rows that the checkpoint has fitted would say nothing about its calibration.
func (e *intentExperiment) arms(ctx context.Context, seed int, common, rates []string) error {
	first := slices.Concat(common, []string{"--dataset", e.file(firstRows), "--mode", "supervised"}, rates)
	if _, err := e.train(ctx, checkpoint, seed, first, "supervised", ""); err != nil {
		return err
	}
	start := filepath.Join(e.folder(checkpoint, seed), "intent_classifier_supervised")
	rest := slices.Concat(common, []string{"--dataset", e.file(restRows), "--pretrained-model", start})
	most := 0
	for _, reward := range rewards {
		r, err := e.train(ctx, "rl "+reward, seed, slices.Concat(rest, []string{"--mode", "rl_only", "--reward", reward}, rlOptions), "rl", start)
		if err != nil {
			return err
		}
		most = max(most, r.Updates)
	}
	// As many updates as the longest RL arm, with the same batch size and learning rates.
	_, err := e.train(ctx, continued, seed, slices.Concat(rest, []string{"--mode", "supervised", "--max-steps", strconv.Itoa(most),
		"--batch-size", "16", "--learning-rate", "1e-4", "--head-learning-rate", "1e-4"}), "supervised", start)
	return err
}

// supervise trains on all training rows. For seed 0 it reuses the run that won the tuning.
func (e *intentExperiment) supervise(ctx context.Context, seed int, options []string) error {
	if seed > 0 {
		_, err := e.train(ctx, supervised, seed, options, "supervised", "")
		return err
	}
	if _, ok := e.find(supervised, seed); ok {
		return nil
	}
	r, _ := e.find("tune "+e.results.Chosen, 0)
	r.Setting = supervised
	return e.add(r)
}

// Files of rows; all have the same validation and test rows.
const (
	allRows   = "split.jsonl" // read by rltrain and the peer
	firstRows = "first.jsonl" // three quarters of the training rows
	restRows  = "rest.jsonl"  // the last quarter
)

func (e *intentExperiment) file(name string) string { return filepath.Join(e.work, name) }

// split writes the rows with their splits, once.
func (e *intentExperiment) split() error {
	if _, err := os.Stat(e.file(allRows)); errors.Is(err, fs.ErrNotExist) {
		if e.source == "" {
			return fmt.Errorf("--source FILE is needed to write %s", e.file(allRows))
		}
		rows, err := dataset.Read(e.source, dataset.Columns{Text: "question", Label: "category"})
		if err != nil {
			return err
		}
		train, val, test := dataset.Split(dataset.Balance(rows, maxRows), splitSeed)
		if err := e.write(allRows, slices.Concat(train, val, test)); err != nil {
			return err
		}
	}
	rows, err := dataset.Read(e.file(allRows), dataset.Columns{})
	if err != nil {
		return err
	}
	e.results.Rows = map[string]int{}
	var first, rest []dataset.Row
	seen := map[string]int{} // training rows by label
	for _, r := range rows {
		e.results.Rows[r.Split]++
		if r.Split != dataset.Train || seen[r.Label]%4 != 3 {
			first = append(first, r)
		}
		if r.Split != dataset.Train || seen[r.Label]%4 == 3 {
			rest = append(rest, r)
		}
		if r.Split == dataset.Train {
			seen[r.Label]++
		}
	}
	if err := e.write(firstRows, first); err != nil {
		return err
	}
	return e.write(restRows, rest)
}

func (e *intentExperiment) write(name string, rows []dataset.Row) error {
	return writeLines(e.file(name), rows)
}

// load reads the runs of an earlier call.
func (e *intentExperiment) load() error {
	var old intentResults
	if err := files.LoadJSON(e.out, &old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.results.Runs = old.Runs
	return nil
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
	return save(e.out, e.results)
}

func (e *intentExperiment) folder(setting string, seed int) string {
	return filepath.Join(e.work, folderOf(setting)+"-"+strconv.Itoa(seed))
}

// train runs rltrain for one (setting, seed), unless the results have that run. start is the folder of the policy that the
// run continues from, to compare with; "" for none.
func (e *intentExperiment) train(ctx context.Context, setting string, seed int, options []string, stage, start string) (intentRun, error) {
	if r, ok := e.find(setting, seed); ok {
		return r, nil
	}
	dir := e.folder(setting, seed)
	options = slices.Concat(options, []string{"--seed", strconv.Itoa(seed)})
	cpu, _, err := command(ctx, e.program, slices.Concat(options, []string{"--output-dir", dir})...)
	if err != nil {
		return intentRun{}, fmt.Errorf("%s, seed %d: %w", setting, seed, err)
	}
	model := filepath.Join(dir, "intent_classifier_"+stage)
	r := intentRun{Setting: setting, Seed: seed, Options: portable(options, e.work), CPUSeconds: cpu}
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
	r.Updates = updatesIn(rows)
	for _, row := range rows {
		if f1, ok := row["eval_f1_macro"].(float64); ok {
			r.ValF1 = max(r.ValF1, f1)
		}
	}
	if start != "" {
		if r.Against, err = e.compare(ctx, start, model); err != nil {
			return r, err
		}
	}
	return r, e.add(r)
}

// compare compares a run with the checkpoint it started from, on the same test rows.
func (e *intentExperiment) compare(ctx context.Context, start, model string) (*rl.Comparison, error) {
	file := e.file("comparison.json")
	if _, _, err := command(ctx, e.program, "compare", start, model, "--dataset", e.file(allRows), "--output", file); err != nil {
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

// runPeer trains the Python peer on the same rows with the same learning rates.
func (e *intentExperiment) runPeer(ctx context.Context, seed int, options []string) error {
	if _, ok := e.find(peerRun, seed); ok {
		return nil
	}
	model, err := new(hub.Client).Model(ctx, e.results.Base, hub.Weights)
	if err != nil {
		return err
	}
	words := strings.Fields(e.peer)
	args := slices.Concat(words[1:], []string{"--model", model.Dir, "--data", e.file(allRows), "--seed", strconv.Itoa(seed), "--max-length", strconv.Itoa(maxLength),
		"--lr", options[1], "--head-lr", options[3]})
	cpu, output, err := command(ctx, words[0], args...)
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
