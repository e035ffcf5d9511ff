package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/report"
)

// decisionsExperiment trains decision models on a few labelled rows, and then by RL on others, of which it sees only whether
// a sampled answer was right.
type decisionsExperiment struct {
	*experiment
	clinc, mmlu, only string
	results           decisionResults
}

// decisionResults is the content of docs/results/decisions.json.
type decisionResults struct {
	Runs  []decisionRun            `json:"runs"`
	Pairs map[string]decisionPairs `json:"comparisons"` // by set
}

// decisionRun is a set and a reward with a seed.
type decisionRun struct {
	Set        string   `json:"set"`
	Reward     string   `json:"reward"`
	Seed       int      `json:"seed"`
	Options    []string `json:"options"`
	CPUSeconds float64  `json:"cpu_seconds"`
	// Probs are those of the test questions, of the supervised model and after RL, without a fitted temperature.
	Probs [2][][]float64 `json:"-"` // in the file of probsFile
}

// decisionPairs compare RL with the supervised model, and by calibration with RL by accuracy, over all seeds.
type decisionPairs struct {
	Calibration rl.Comparison  `json:"calibration_after_supervised"`
	Accuracy    rl.Comparison  `json:"accuracy_after_supervised"`
	Rewards     rl.Comparison  `json:"calibration_against_accuracy"`
	Cost        *rl.Difference `json:"cost_after_supervised,omitempty"`
	// Least is the same against the supervised model's answers of least expected cost.
	Least     *rl.Difference `json:"cost_after_supervised_least,omitempty"`
	Abstained float64        `json:"abstained,omitempty"`
	// Distance is the mean squared distance to the known probabilities: supervised, calibration, accuracy.
	Distance []float64 `json:"distance,omitempty"`
}

// decisionSets are the sets of questions, with the model's options and the rewards of RL.
var decisionSets = []struct {
	name, options string
	rewards       []string
	write         func(e *decisionsExperiment) ([]decisionCase, error)
}{
	{"clinc", twice, []string{"calibration", "accuracy"}, (*decisionsExperiment).clincCases},
	{"known", twice, []string{"calibration", "accuracy"}, (*decisionsExperiment).knownCases},
	{"routing", twice, []string{"cost"}, (*decisionsExperiment).routingCases},
	{"desk", desk, []string{"cost"}, (*decisionsExperiment).deskCases},
	{"mmlu", smolLM2, []string{"calibration", "accuracy"}, (*decisionsExperiment).mmluCases},
}

const (
	miniLM  = "--model sentence-transformers/all-MiniLM-L6-v2 --max-length 64 --epochs 4 --learning-rate 0.001 --buffer-size 256 --rl-batch-size 256"
	twice   = miniLM + " --rl-episodes 40 --rl-learning-rate 0.0005 --samples-per-prompt 2"
	desk    = miniLM + " --rl-episodes 40 --rl-learning-rate 0.001 --entropy-coef 0.1"
	smolLM2 = "--model smollm2 --epochs 2 --rl-episodes 8 --buffer-size 32 --rl-batch-size 32 --rl-learning-rate 0.00005 --samples-per-prompt 2"
)

func (e *decisionsExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.results.Runs = slices.DeleteFunc(e.results.Runs, func(r decisionRun) bool { return !files.Exist(e.probsFile(r)) })
	for i := range e.results.Runs {
		if err := files.LoadJSON(e.probsFile(e.results.Runs[i]), &e.results.Runs[i].Probs); err != nil {
			return err
		}
	}
	for _, set := range decisionSets {
		if e.only != "" && e.only != set.name {
			continue
		}
		cases, err := set.write(e)
		if err != nil {
			return fmt.Errorf("%s: %w", set.name, err)
		}
		if err := writeCases(e.file(set.name), cases); err != nil {
			return err
		}
		for _, seed := range e.eachSeed() {
			for _, by := range set.rewards {
				if slices.ContainsFunc(e.results.Runs, func(r decisionRun) bool { return r.Set == set.name && r.Reward == by && r.Seed == seed }) {
					continue
				}
				r, err := e.train(ctx, set.name, set.options, by, seed, cases)
				if err != nil {
					return fmt.Errorf("%s by %s, seed %d: %w", set.name, by, seed, err)
				}
				if err := files.SaveJSON(e.probsFile(r), r.Probs); err != nil {
					return err
				}
				fmt.Printf("%s by %s, seed %d: %.0f CPU s\n", set.name, by, seed, r.CPUSeconds)
				e.results.Runs = append(e.results.Runs, r)
				if err := e.compare(set.name, cases); err != nil {
					return err
				}
				if err := save(e.out, e.results); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// probsFile has the probabilities of a run, which is done again without it.
func (e *decisionsExperiment) probsFile(r decisionRun) string {
	return filepath.Join(e.work, fmt.Sprintf("%s_%s_%d_probs.json", r.Set, r.Reward, r.Seed))
}

func (e *decisionsExperiment) file(set string) string { return filepath.Join(e.work, set+".jsonl") }

// costFile is the cost matrix of a set.
func (e *decisionsExperiment) costFile(set string) string {
	return filepath.Join(e.work, set+"_costs.json")
}

// train trains a fifth of the rows supervised, the others by RL.
func (e *decisionsExperiment) train(ctx context.Context, set, options, by string, seed int, cases []decisionCase) (decisionRun, error) {
	r := decisionRun{Set: set, Reward: by, Seed: seed}
	if by == "cost" {
		by = "cost:" + e.costFile(set)
	}
	out := filepath.Join(e.work, fmt.Sprintf("%s_%s_%d", set, r.Reward, seed))
	args := strings.Fields(fmt.Sprintf("--task decisions --mode supervised_then_rl --rl-share 0.8 --dataset %s %s --reward %s --keep last --threads 1 --device cpu --seed %d --output-dir %s",
		e.file(set), options, by, seed, out))
	switch r.Reward {
	case "accuracy":
		args = append(args, "--feedback", "chosen", "--entropy-coef", "0.01")
	case "calibration":
		args = append(args, "--feedback", "chosen")
	}
	r.Options = portable(args, e.work, e.work, out)
	if err := os.RemoveAll(out); err != nil { // what a stopped call left
		return r, err
	}
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, args...); err != nil {
		return r, err
	}
	for i, stage := range []string{"decisions_supervised", "decisions_rl"} {
		if r.Probs[i], err = e.predict(ctx, filepath.Join(out, stage), cases); err != nil {
			return r, err
		}
	}
	return r, nil
}

// predict are the probabilities of the test questions at temperature 1.
func (e *decisionsExperiment) predict(ctx context.Context, dir string, cases []decisionCase) (all [][]float64, err error) {
	settings := map[string]any{}
	path := filepath.Join(dir, "decision.json")
	if err := files.LoadJSON(path, &settings); err != nil {
		return nil, err
	}
	delete(settings, "temperature")
	if err := files.SaveJSON(path, settings); err != nil {
		return nil, err
	}
	test := inPart(cases, dataset.Test)
	asked, answered := filepath.Join(e.work, "asked.jsonl"), filepath.Join(e.work, "answered.jsonl")
	if err := writeCases(asked, test); err != nil {
		return nil, err
	}
	if _, _, err := command(ctx, e.program, "predict", "--model", dir, "--input", asked, "--output", answered, "--threads", "1", "--device", "cpu"); err != nil {
		return nil, err
	}
	at := 0
	for row, err := range dataset.Records(answered) {
		if err != nil {
			return nil, err
		}
		value, _ := row.Fields.Get("answers")
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		var answers map[string]struct {
			Noul          *float64
			Probabilities map[string]float64
		}
		if err := json.Unmarshal(text, &answers); err != nil {
			return nil, err
		}
		for _, q := range test[at].questions {
			answer := answers[q.name]
			probs := make([]float64, len(q.options))
			for k, option := range q.options {
				probs[k] = math.Round(1e5*answer.Probabilities[option]) / 1e5
			}
			if answer.Noul != nil {
				p := math.Round(1e5**answer.Noul) / 1e5
				probs = []float64{p, 1 - p}
			}
			all = append(all, probs)
		}
		at++
	}
	return all, nil
}

// compare pairs the runs of a set over seeds. Where the probabilities of a question are known, its answer is sampled from them.
func (e *decisionsExperiment) compare(set string, cases []decisionCase) error {
	var targets [][]float64
	var options [][]string
	for _, c := range inPart(cases, dataset.Test) {
		for _, q := range c.questions {
			targets, options = append(targets, q.target), append(options, q.options)
		}
	}
	by := map[string][][2][][]float64{}
	for _, r := range e.results.Runs {
		if r.Set == set {
			by[r.Reward] = append(by[r.Reward], r.Probs)
		}
	}
	width := 0
	var truth []int
	rng := rand.New(rand.NewPCG(splitSeed, 8))
	for _, t := range targets {
		width = max(width, len(t))
		truth = append(truth, sampled(t, rng))
	}
	padded := func(runs [][2][][]float64, stage int) (out [][][]float32) {
		for _, r := range runs {
			var all [][]float32
			for _, p := range r[stage] {
				row := make([]float32, width)
				for k, x := range p {
					row[k] = float32(x)
				}
				all = append(all, row)
			}
			out = append(out, all)
		}
		return out
	}
	var p decisionPairs
	if runs := by["cost"]; len(runs) > 0 {
		m, err := reward.ReadCosts(e.costFile(set))
		if err != nil {
			return err
		}
		p.Cost, p.Least, p.Abstained = costDifferences(m, runs, truth, options)
	}
	calibrated, accurate := by["calibration"], by["accuracy"]
	n := min(len(calibrated), len(accurate))
	if n > 0 {
		calibrated, accurate = calibrated[:n], accurate[:n]
		p.Calibration = rl.CompareRuns(width, truth, padded(calibrated, 0), padded(calibrated, 1))
		p.Accuracy = rl.CompareRuns(width, truth, padded(accurate, 0), padded(accurate, 1))
		p.Rewards = rl.CompareRuns(width, truth, padded(accurate, 1), padded(calibrated, 1))
	}
	if set == "known" && n > 0 {
		distance := func(runs [][2][][]float64, stage int) float64 {
			sum, count := 0.0, 0.0
			for _, r := range runs {
				for i, probs := range r[stage] {
					sum, count = sum+decisions.Brier(targets[i], probs), count+1
				}
			}
			return sum / count
		}
		p.Distance = []float64{distance(calibrated, 0), distance(calibrated, 1), distance(accurate, 1)}
	}
	if e.results.Pairs == nil {
		e.results.Pairs = map[string]decisionPairs{}
	}
	e.results.Pairs[set] = p
	return nil
}

// costDifferences are what the most likely answers cost after RL, against the supervised model's most likely answers and its
// answers of least expected cost, as means over seeds; and how many abstain after RL.
func costDifferences(m reward.CostMatrix, runs [][2][][]float64, right []int, options [][]string) (likely, least *rl.Difference, abstained float64) {
	var costs [3][]float64 // supervised, supervised with the least expected cost, RL
	n := float64(len(runs))
	for i, k := range right {
		truth := options[i][k]
		var of [3]float64
		for _, r := range runs {
			answers := [3]string{mostLikely(options[i], r[0][i]), cheapest(m, options[i], r[0][i]), mostLikely(options[i], r[1][i])}
			for j, answer := range answers {
				of[j] += m.Of(truth, answer) / n
			}
			if answers[2] == decisions.Abstain {
				abstained += 1 / (n * float64(len(right)))
			}
		}
		for j := range costs {
			costs[j] = append(costs[j], of[j])
		}
	}
	a, b := rl.CompareMeans(costs[0], costs[2]), rl.CompareMeans(costs[1], costs[2])
	return &a, &b, abstained
}

func mostLikely(options []string, probs []float64) string {
	return options[slices.Index(probs, slices.Max(probs))]
}

// cheapest is the answer of least expected cost.
func cheapest(m reward.CostMatrix, options []string, probs []float64) string {
	return slices.MinFunc(options, func(a, b string) int {
		expected := 0.0
		for k, truth := range options {
			expected += probs[k] * (m.Of(truth, a) - m.Of(truth, b))
		}
		return cmp.Compare(expected, 0)
	})
}

// markdown is the experiment's table.
func (r decisionResults) markdown() string {
	var rows [][]string
	difference := func(d rl.Difference) string {
		return fmt.Sprintf("%.4f → %.4f (%+.4f [%+.4f, %+.4f])", d.A, d.B, d.Difference, d.Interval[0], d.Interval[1])
	}
	for _, set := range decisionSets {
		p, ok := r.Pairs[set.name]
		if !ok {
			continue
		}
		for _, one := range []struct {
			name string
			c    rl.Comparison
		}{{"supervised → RL by calibration", p.Calibration}, {"supervised → RL by accuracy", p.Accuracy}, {"RL by accuracy → by calibration", p.Rewards}} {
			if one.c.N > 0 {
				rows = append(rows, []string{set.name, one.name, fmt.Sprint(one.c.N), difference(one.c.Accuracy), difference(one.c.Brier), difference(one.c.ECE)})
			}
		}
		if p.Cost != nil {
			rows = append(rows, []string{set.name, fmt.Sprintf("cost, supervised → RL by cost (abstains %.1f %%)", 100*p.Abstained), "", difference(*p.Cost), "", ""},
				[]string{set.name, "cost, supervised with the answers of least expected cost → RL by cost", "", difference(*p.Least), "", ""})
		}
		if p.Distance != nil {
			rows = append(rows, []string{set.name, "squared distance to the known probabilities", "", fmt.Sprintf("supervised %.4f, calibration %.4f, accuracy %.4f", p.Distance[0], p.Distance[1], p.Distance[2]), "", ""})
		}
	}
	return report.NarrowMarkdownTable([]string{"set", "comparison", "n", "accuracy", "Brier", "ECE"}, rows)
}

// decisionsPage stands before the table.
const decisionsPage = `# Decision models: RL from right or wrong

A fifth of the training rows is labelled and trains the supervised model. RL then sees, of the other rows, only whether a sampled
answer was right (--feedback chosen), or the costs of all answers (routing, desk). Differences have 95 % intervals over test questions,
paired, as means over the seeds. All figures are without a fitted temperature.

- clinc: domain of a text of CLINC150 (choice of ten) and whether it is in scope (noul). MiniLM.
- known: satisfaction with a delivery (score of four levels), whose probabilities are known; trained on answers sampled from them. MiniLM.
- routing: the domains with abstaining at a cost of 0.2, where a question about banking that goes elsewhere costs 10. MiniLM.
- desk: the same deliveries as a choice of what the customer feels, with abstaining at a cost of 0.45, where an angry customer who is
  taken for a satisfied one costs 10. MiniLM.
- mmlu: short questions of MMLU-Pro with ten options. SmolLM2.

On clinc, known and mmlu, RL by calibration is better calibrated than the supervised model and than RL by accuracy. On mmlu SmolLM2
answers at chance before and after: RL by calibration makes it less sure. There the learning rate matters: with the recipe's 0.0002
and one sample per question instead of 0.00005 and two, RL made the Brier score worse (0.92 to 0.94 on other questions of the set).
The options of mmlu were chosen on validation questions with a seed that is not in the table. RL by cost is cheaper than the supervised
model's most likely answers; it makes no difference to that model's answers of least expected cost,
which ` + "`rltrain eval --cost`" + ` prints.

`

// writeDecisionsTable writes the page of the results, if there are any.
func writeDecisionsTable(page, results string) error {
	var r decisionResults
	err := files.LoadJSON(results, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text := decisionsPage + r.markdown()
	var speed decisionSpeed
	if err = files.LoadJSON(strings.TrimSuffix(results, ".json")+"_speed.json", &speed); err == nil {
		text += speed.markdown()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return outfile.Write(page, []byte(text), 0o644)
}

// decisionSpeed is the content of docs/results/decisions_speed.json, of scripts/decisions_speed.py.
type decisionSpeed struct {
	Processor string `json:"processor"`
	Head      struct {
		Request float64 `json:"request_ms"`
		Predict float64 `json:"predict_ms"`
		Ratio   float64 `json:"ratio"`
	} `json:"head"`
	FP32 languageModelSpeed `json:"fp32"`
	BF16 languageModelSpeed `json:"bf16"`
}

type languageModelSpeed struct {
	One          float64 `json:"one_ms"`
	Five         float64 `json:"five_ms"`
	FiveRatio    float64 `json:"five_ratio"`
	Clients      int     `json:"clients"`
	Ours         float64 `json:"requests_per_second"`
	Transformers float64 `json:"transformers_serve"`
	LoadRatio    float64 `json:"load_ratio"`
}

func (s decisionSpeed) markdown() string {
	rows := [][]string{
		{"one question, head on MiniLM", fmt.Sprintf("%.2f ms", s.Head.Request), fmt.Sprintf("%.2f ms: a line of rltrain predict", s.Head.Predict), fmt.Sprintf("%.2f", s.Head.Ratio)},
	}
	for i, m := range []languageModelSpeed{s.FP32, s.BF16} {
		dtype := []string{"fp32", "bf16"}[i]
		rows = append(rows,
			[]string{"five questions about a state of some 200 tokens, SmolLM2, " + dtype, fmt.Sprintf("%.0f ms", m.Five), fmt.Sprintf("%.0f ms: one question", m.One), fmt.Sprintf("%.2f", m.FiveRatio)},
			[]string{fmt.Sprintf("%d clients, one question each, SmolLM2, %s", m.Clients, dtype), fmt.Sprintf("%.1f requests/s", m.Ours), fmt.Sprintf("%.1f requests/s: transformers serve 5.23", m.Transformers), fmt.Sprintf("%.1f", m.LoadRatio)})
	}
	return fmt.Sprintf("\n## Speed\n\nMedians of five rounds on %s; repeat: `scripts/compat.sh -r scripts/decisions_speed.txt scripts/decisions_speed.py`.\n\n", s.Processor) +
		report.NarrowMarkdownTable([]string{"case", "rltrain serve", "compared with", "ratio"}, rows)
}
