// Package decisions is the task of decision models: typed questions about states, whose answers are probabilities.
package decisions

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Fault is what is wrong with a field of a row. It encodes to JSON.
type Fault struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Field string `json:"field"` // such as questions.urgent.answer
	What  string `json:"error"`
}

func (f Fault) Error() string { return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Field, f.What) }

// JSON is the fault on one line.
func (f Fault) JSON() string {
	text, err := json.Marshal(f)
	if err != nil {
		return f.Error()
	}
	return string(text)
}

// rounding is how far the probabilities of an answer may be from a sum of 1.
const rounding = 1e-6

// read reads the questions of a row. With answers, each question has one. It returns all faults of the row.
func read(r dataset.Record, row int, answers bool) (all []envs.Decision, faults []Fault) {
	wrong := func(field, format string, args ...any) {
		faults = append(faults, Fault{r.File, r.Line, field, fmt.Sprintf(format, args...)})
	}
	state, err := valueOf(r.Fields, "state")
	if err != nil {
		wrong("state", "%v", err)
	}
	switch state.(type) {
	case string, *jinja.Dict, *jinja.List:
	default:
		if err == nil {
			wrong("state", "want a text, an object or a list")
		}
	}
	value, err := valueOf(r.Fields, "questions")
	questions, ok := value.(*jinja.Dict)
	switch {
	case err != nil:
		wrong("questions", "%v", err)
		return nil, faults
	case !ok || questions.Len() == 0:
		wrong("questions", "want an object of questions by name, at least one")
		return nil, faults
	}
	split, err := splitOf(r.Fields)
	if err != nil {
		wrong("split", "%v", err)
	}
	for _, name := range questions.Keys() {
		field := "questions." + name
		asked, _ := questions.Get(name)
		d := envs.Decision{State: state, Row: row, Split: split, File: r.File, Line: r.Line}
		var answer jinja.Value
		if fields, ok := asked.(*jinja.Dict); ok {
			bare := jinja.NewDict()
			for _, key := range fields.Keys() {
				one, _ := fields.Get(key)
				if key == "answer" {
					answer = one
				} else {
					bare.Set(key, one)
				}
			}
			asked = bare
		}
		if d.Question, err = decision.ParseQuestion(name, asked); err != nil {
			wrong(field, "%v", err)
			continue
		}
		if answers {
			if err := readAnswer(&d, answer); err != nil {
				wrong(field+".answer", "%v", err)
				continue
			}
		}
		all = append(all, d)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return all, nil
}

// valueOf is a field as templates see it.
func valueOf(fields dataset.Object, name string) (jinja.Value, error) {
	value, ok := fields.Get(name)
	if !ok {
		return nil, errors.New("missing")
	}
	if text, ok := value.(string); ok {
		return text, nil
	}
	text, err := dataset.Object{{Name: "v", Value: value}}.MarshalJSON()
	if err != nil {
		return nil, err
	}
	parsed, err := jinja.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	v, _ := parsed.(*jinja.Dict).Get("v")
	return v, nil
}

func splitOf(fields dataset.Object) (string, error) {
	value, ok := fields.Get("split")
	if !ok {
		return "", nil
	}
	switch value {
	case dataset.Train, dataset.Val, dataset.Test:
		return value.(string), nil
	case "validation":
		return dataset.Val, nil
	}
	return "", errors.New("want train, val or test")
}

// readAnswer reads an answer: an option, a probability of each, or the reward of one.
func readAnswer(d *envs.Decision, answer jinja.Value) error {
	q := &d.Question
	n := len(q.Options)
	switch a := answer.(type) {
	case nil:
		return errors.New("missing; give an option, a probability of each option, or the reward of a chosen one")
	case *jinja.Dict:
		if _, ok := a.Get("reward"); ok && !slices.Contains(q.Options, "reward") {
			return readFeedback(d, a)
		}
		d.Target = make([]float64, n)
		for _, key := range a.Keys() {
			i := slices.Index(q.Options, key)
			if i < 0 {
				return unknownOption(q, key)
			}
			value, _ := a.Get(key)
			p, ok := number(value)
			if !ok || p < 0 || p > 1 {
				return fmt.Errorf("the probability of %.100q must be a number from 0 to 1", key)
			}
			d.Target[i] = p
		}
		return normalise(d.Target)
	case *jinja.List:
		if len(a.Items) != n {
			return fmt.Errorf("%d probabilities for %d options", len(a.Items), n)
		}
		d.Target = make([]float64, n)
		for i, value := range a.Items {
			p, ok := number(value)
			if !ok || p < 0 || p > 1 {
				return fmt.Errorf("probability %d must be a number from 0 to 1", i)
			}
			d.Target[i] = p
		}
		return normalise(d.Target)
	case float64:
		if q.Type == decision.Noul && a >= 0 && a <= 1 {
			d.Target = []float64{a, 1 - a}
			return nil
		}
	}
	i, err := optionOf(q, answer)
	if err != nil {
		return err
	}
	d.Target = make([]float64, n)
	d.Target[i] = 1
	return nil
}

func readFeedback(d *envs.Decision, a *jinja.Dict) error {
	for _, key := range a.Keys() {
		if !slices.Contains([]string{"chosen", "reward", "probability"}, key) {
			return fmt.Errorf("%.100q is unknown; feedback has chosen, reward and probability", key)
		}
	}
	chosen, _ := a.Get("chosen")
	i, err := optionOf(&d.Question, chosen)
	if err != nil {
		return fmt.Errorf("chosen: %w", err)
	}
	f := envs.Feedback{Chosen: i, Probability: 1 / float64(len(d.Question.Options))}
	value, _ := a.Get("reward")
	var ok bool
	if f.Reward, ok = number(value); !ok || f.Reward < 0 || f.Reward > 1 {
		return errors.New("reward must be a number from 0 (wrong) to 1 (right)")
	}
	if value, given := a.Get("probability"); given {
		if f.Probability, ok = number(value); !ok || f.Probability <= 0 || f.Probability > 1 {
			return errors.New("probability, with which the option was chosen, must be above 0 and at most 1")
		}
	}
	d.Feedback = &f
	return nil
}

// optionOf is the index of an option: a name, true or false, or a level.
func optionOf(q *decision.Question, value jinja.Value) (int, error) {
	name := ""
	switch v := value.(type) {
	case string:
		name = v
	case bool:
		name = strconv.FormatBool(v)
	case int64:
		name = strconv.FormatInt(v, 10)
	default:
		return 0, fmt.Errorf("want one of the options %.200q", q.Options)
	}
	if i := slices.Index(q.Options, name); i >= 0 {
		return i, nil
	}
	return 0, unknownOption(q, name)
}

func unknownOption(q *decision.Question, name string) error {
	return fmt.Errorf("%.100q is not one of the options %.200q", name, q.Options)
}

func number(v jinja.Value) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case *big.Int:
		return 0, false
	}
	return 0, false
}

// normalise divides probabilities by their sum, which must be about 1.
func normalise(p []float64) error {
	sum := 0.0
	for _, x := range p {
		sum += x
	}
	if math.Abs(sum-1) > rounding {
		return fmt.Errorf("the probabilities sum to %.6g, not 1", sum)
	}
	for i := range p {
		p[i] /= sum
	}
	return nil
}

// fixed makes a choice among the labels of a file for each row.
func fixed(name, instructions string, rows []dataset.Row) []envs.Decision {
	var labels []string
	for _, r := range rows {
		labels = append(labels, r.Label)
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	q := decision.Question{Name: cmp.Or(name, "label"), Type: decision.Choice, Options: labels, Descriptions: make([]jinja.Value, len(labels))}
	if instructions != "" {
		q.Instructions = instructions
	}
	all := make([]envs.Decision, len(rows))
	for i, r := range rows {
		target := make([]float64, len(labels))
		target[slices.Index(labels, r.Label)] = 1
		all[i] = envs.Decision{State: r.Text, Question: q, Target: target, Row: i, Split: r.Split, File: r.File, Line: r.Line}
	}
	return all
}
