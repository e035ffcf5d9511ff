package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/decisions"
)

// decisionCase is a state with its questions.
type decisionCase struct {
	state     string
	part      string
	questions []decisionQuestion
}

// decisionQuestion is a question and the probabilities of its options.
type decisionQuestion struct {
	name, kind, instructions string
	options                  []string // levels of a score question are counted from 0
	levels                   []string // of a score question
	target                   []float64
}

func inPart(cases []decisionCase, part string) []decisionCase {
	return slices.DeleteFunc(slices.Clone(cases), func(c decisionCase) bool { return c.part != part })
}

// writeCases writes rows with questions and answers.
func writeCases(path string, cases []decisionCase) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	for _, c := range cases {
		questions := map[string]any{}
		for _, q := range c.questions {
			asked := map[string]any{"type": q.kind, "answer": q.target}
			if q.instructions != "" {
				asked["instructions"] = q.instructions
			}
			switch q.kind {
			case "score":
				asked["criteria"] = q.levels
			case "choice":
				criteria := dataset.Object{}
				for _, option := range q.options {
					criteria = append(criteria, dataset.Field{Name: option})
				}
				asked["criteria"] = criteria
			}
			questions[q.name] = asked
		}
		if err := encoder.Encode(map[string]any{"state": c.state, "split": c.part, "questions": questions}); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return outfile.Write(path, b.Bytes(), 0o644)
}

// hard is the target of a known answer.
func hard(options int, answer int) []float64 {
	target := make([]float64, options)
	target[answer] = 1
	return target
}

// sampled is an option, by its probability.
func sampled(probs []float64, rng *rand.Rand) int {
	u, option := rng.Float64(), 0
	for u -= probs[0]; u >= 0 && option < len(probs)-1; u -= probs[option] {
		option++
	}
	return option
}

// sizes of the parts of a set.
const decisionTrain, decisionVal, decisionTest = 1500, 200, 400

// clincCases ask for the domain of a text, and whether it has one.
func (e *decisionsExperiment) clincCases() ([]decisionCase, error) { return e.domains(nil) }

// routingCases ask for the domain alone, with abstaining as one of the answers: a question about banking that goes elsewhere
// costs ten times as much as other mistakes.
func (e *decisionsExperiment) routingCases() ([]decisionCase, error) {
	cases, err := e.domains([]string{decisions.Abstain})
	if err != nil {
		return nil, err
	}
	dear := map[string]float64{}
	for _, option := range cases[0].questions[0].options {
		if option != "banking" && option != decisions.Abstain {
			dear[option] = 10
		}
	}
	return cases, e.writeCosts("routing", map[string]map[string]float64{"banking": dear, "*": {decisions.Abstain: 0.2}})
}

// deskCases ask what the customers of knownCases feel, as a choice in which an angry one must not be taken for a satisfied one.
func (e *decisionsExperiment) deskCases() ([]decisionCase, error) {
	cases, err := e.knownCases()
	if err != nil {
		return nil, err
	}
	for i := range cases {
		q := &cases[i].questions[0]
		q.kind, q.options, q.target = "choice", append(slices.Clone(q.levels), decisions.Abstain), append(q.target, 0)
	}
	return cases, e.writeCosts("desk", map[string]map[string]float64{"angry": {"satisfied": 10, "delighted": 10}, "*": {decisions.Abstain: 0.45}})
}

func (e *decisionsExperiment) writeCosts(set string, costs map[string]map[string]float64) error {
	if err := os.MkdirAll(e.work, 0o755); err != nil {
		return err
	}
	return files.SaveJSON(e.costFile(set), costs)
}

// domains are texts of CLINC150 by domain; with more options there is no question about the scope.
func (e *decisionsExperiment) domains(more []string) ([]decisionCase, error) {
	text := &textExperiment{experiment: &experiment{work: e.work}, clinc: e.clinc}
	if err := text.clincRows(); err != nil {
		return nil, err
	}
	rows, err := dataset.Read(text.file("domains"), dataset.Columns{Text: "text", Label: "label", Split: "split"})
	if err != nil {
		return nil, err
	}
	labels, err := dataset.Labels(rows)
	if err != nil {
		return nil, err
	}
	options := append(slices.Clone(labels), more...)
	var cases []decisionCase
	for _, r := range few(rows, decisionTrain, decisionVal, decisionTest) {
		domain := decisionQuestion{name: "domain", kind: "choice", instructions: "What is it about?", options: options, target: hard(len(options), slices.Index(options, r.Label))}
		c := decisionCase{state: r.Text, part: r.Split, questions: []decisionQuestion{domain}}
		if more == nil {
			c.questions = append(c.questions, decisionQuestion{name: "known", kind: "noul", instructions: "Is it about one of the known domains?", options: []string{"true", "false"}, target: hard(2, 0)})
		}
		cases = append(cases, c)
	}
	if more != nil {
		return cases, nil
	}
	var all map[string][][2]string
	if err := files.LoadJSON(filepath.Join(e.clinc, "data_full.json"), &all); err != nil {
		return nil, err
	}
	for part, limit := range map[string]int{dataset.Train: 100, dataset.Val: 50, dataset.Test: 150} {
		outside := all["oos_"+part]
		for _, row := range outside[:min(limit, len(outside))] {
			cases = append(cases, decisionCase{state: row[0], part: part, questions: []decisionQuestion{{name: "known", kind: "noul", instructions: "Is it about one of the known domains?", options: []string{"true", "false"}, target: hard(2, 1)}}})
		}
	}
	slices.SortStableFunc(cases, func(a, b decisionCase) int { return strings.Compare(a.state, b.state) })
	return cases, nil
}

// knownCases are deliveries of which the probability of each level of satisfaction is known: the answers to learn from are
// sampled from it, those to measure on are the probabilities.
func (e *decisionsExperiment) knownCases() ([]decisionCase, error) {
	levels := []string{"angry", "disappointed", "satisfied", "delighted"}
	states, moods := []string{"broken", "scratched", "intact", "beautifully wrapped"}, []string{"rude", "silent", "polite", "funny"}
	rng := rand.New(rand.NewPCG(splitSeed, 7))
	var cases []decisionCase
	for _, part := range []struct {
		name string
		n    int
	}{{dataset.Train, decisionTrain}, {dataset.Val, decisionVal}, {dataset.Test, decisionTest}} {
		for range part.n {
			days, state, mood := rng.IntN(6), rng.IntN(4), rng.IntN(4)
			centre := 0.5*float64(state) + 0.35*float64(mood) - 0.3*float64(days) + 0.8
			probs, sum := make([]float64, len(levels)), 0.0
			for k := range probs {
				probs[k] = math.Exp(-math.Pow(float64(k)-centre, 2))
				sum += probs[k]
			}
			for k := range probs {
				probs[k] /= sum
			}
			target := probs
			if part.name == dataset.Train {
				target = hard(len(levels), sampled(probs, rng))
			}
			cases = append(cases, decisionCase{
				state: fmt.Sprintf("The parcel came %d days late, it was %s, and the courier was %s.", days, states[state], moods[mood]), part: part.name,
				questions: []decisionQuestion{{name: "mood", kind: "score", instructions: "How satisfied is the customer?", options: []string{"0", "1", "2", "3"}, levels: levels, target: target}},
			})
		}
	}
	return cases, nil
}

// mmluCases are short questions of MMLU-Pro with ten options.
func (e *decisionsExperiment) mmluCases() ([]decisionCase, error) {
	parts := []string{dataset.Train, dataset.Test, dataset.Val}
	wanted, taken := map[string]int{dataset.Train: 320, dataset.Test: 200, dataset.Val: 80}, map[string]int{}
	var cases []decisionCase
	for r, err := range dataset.Records(e.mmlu) {
		if err != nil {
			return nil, err
		}
		question, _ := r.Fields.Get("question")
		listed, _ := r.Fields.Get("options")
		answer, _ := r.Fields.Get("answer_index")
		text, _ := question.(string)
		items, _ := listed.([]any)
		right, _ := answer.(int64)
		var options []string
		length := len(text)
		for _, item := range items {
			option, _ := item.(string)
			length += len(option)
			options = append(options, option)
		}
		sorted := slices.Sorted(slices.Values(options))
		if len(options) != 10 || length > 400 || len(slices.Compact(sorted)) != 10 {
			continue
		}
		part := slices.MinFunc(parts, func(a, b string) int { return cmp.Compare(taken[a]*wanted[b], taken[b]*wanted[a]) })
		if taken[part] == wanted[part] {
			break // as are the others then
		}
		taken[part]++
		cases = append(cases, decisionCase{state: text, part: part, questions: []decisionQuestion{{name: "answer", kind: "choice", options: options, target: hard(10, int(right))}}})
	}
	return cases, nil
}
