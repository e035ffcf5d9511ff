package decision

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Question is a question with its options in the order of their labels.
type Question struct {
	Name         string
	Type         string
	Instructions jinja.Value   // a text, an object, a list or nil
	Options      []string      // names, levels counted from 0, or true and false
	Labels       []string      // a label for each option
	Descriptions []jinja.Value // of each option; nil has none
}

// examples show how a question of each type is written.
var examples = map[string]string{
	Noul:   `{"type":"noul","instructions":"Does the writer ask for a refund?","criteria":{"true":"Wants money back","false":"Does not"}}`,
	Choice: `{"type":"choice","instructions":"Which team answers?","criteria":{"billing":"Invoices and payments","support":null}}`,
	Score:  `{"type":"score","instructions":"How soon is an answer needed?","criteria":["Any time","This week","Today"]}`,
}

// Parse reads the questions of a request and labels their options. Its error lists all that are wrong.
func (c *Config) Parse(questions *jinja.Dict) ([]Question, error) {
	return parseAll(questions, c.question)
}

// ParseQuestions reads the questions of a request without labels. Its error lists all that are wrong.
func ParseQuestions(questions *jinja.Dict) ([]Question, error) {
	return parseAll(questions, ParseQuestion)
}

func parseAll(questions *jinja.Dict, read func(string, jinja.Value) (Question, error)) ([]Question, error) {
	if questions == nil || questions.Len() == 0 {
		return nil, errors.New("questions is empty; ask at least one")
	}
	var parsed []Question
	var wrong []error
	for _, name := range questions.Keys() {
		value, _ := questions.Get(name)
		q, err := read(name, value)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("question %.100q: %w", name, err))
			continue
		}
		parsed = append(parsed, q)
	}
	return parsed, errors.Join(wrong...)
}

func (c *Config) question(name string, value jinja.Value) (Question, error) {
	q, err := ParseQuestion(name, value)
	if err != nil {
		return q, err
	}
	return c.Label(q)
}

// Label gives a question the labels of the model, and a noul question the model's order of options.
func (c *Config) Label(q Question) (Question, error) {
	if q.Type == Noul && !slices.Equal(q.Options, c.options()) {
		q.Options, q.Descriptions = []string{q.Options[1], q.Options[0]}, []jinja.Value{q.Descriptions[1], q.Descriptions[0]}
	}
	labels := c.labels(q.Type)
	if len(labels) < len(q.Options) {
		return q, fmt.Errorf("the model reads at most %d options of a %s question, here are %d", len(labels), q.Type, len(q.Options))
	}
	q.Labels = labels[:len(q.Options)]
	return q, nil
}

// ParseQuestion reads a question of a request, which has no labels yet. The options of a noul question are true and false.
func ParseQuestion(name string, value jinja.Value) (q Question, err error) {
	fields, ok := value.(*jinja.Dict)
	if !ok {
		return q, fmt.Errorf("want an object such as %s", examples[Choice])
	}
	q.Name = name
	kind, _ := fields.Get("type")
	if q.Type, _ = kind.(string); !slices.Contains(types, q.Type) {
		return q, fmt.Errorf("type must be %s", strings.Join(types, " or "))
	}
	for _, key := range fields.Keys() {
		if !slices.Contains([]string{"type", "instructions", "criteria"}, key) {
			return q, fmt.Errorf("%.100q is unknown; a %s question looks like %s", key, q.Type, examples[q.Type])
		}
	}
	if q.Instructions, _ = fields.Get("instructions"); !content(q.Instructions) {
		return q, errors.New("instructions must be a text, an object or a list")
	}
	criteria, _ := fields.Get("criteria")
	if err := q.describe(criteria, []string{"true", "false"}); err != nil {
		return q, fmt.Errorf("%w; a %s question looks like %s", err, q.Type, examples[q.Type])
	}
	return q, nil
}

// describe reads the options and their descriptions.
func (q *Question) describe(criteria jinja.Value, noul []string) error {
	switch q.Type {
	case Score:
		levels, ok := criteria.(*jinja.List)
		if !ok || len(levels.Items) == 0 {
			return errors.New("criteria must list at least one level")
		}
		for i, level := range levels.Items {
			if level == nil || !content(level) {
				return fmt.Errorf("level %d must be a text, an object or a list", i)
			}
			q.Options, q.Descriptions = append(q.Options, strconv.Itoa(i)), append(q.Descriptions, level)
		}
		return nil
	case Noul:
		q.Options, q.Descriptions = noul, make([]jinja.Value, len(noul))
		if criteria == nil {
			return nil
		}
	}
	named, ok := criteria.(*jinja.Dict)
	if !ok || q.Type == Choice && named.Len() == 0 {
		return errors.New("criteria must be an object of options with their descriptions")
	}
	for _, option := range named.Keys() {
		description, _ := named.Get(option)
		if !content(description) {
			return fmt.Errorf("option %.100q must be described by a text, an object, a list or null", option)
		}
		if q.Type == Choice {
			q.Options, q.Descriptions = append(q.Options, option), append(q.Descriptions, description)
			continue
		}
		i := slices.Index(noul, option)
		if i < 0 {
			return fmt.Errorf("%.100q is neither \"true\" nor \"false\"", option)
		}
		q.Descriptions[i] = description
	}
	return nil
}

// content tells whether a value may describe something.
func content(v jinja.Value) bool {
	switch v.(type) {
	case nil, string, *jinja.Dict, *jinja.List:
		return true
	}
	return false
}
