// Package text is text classification: labelled rows for a classifier, or the same rows as one-step episodes for a
// language model that generates the label.
package text

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed text.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "text", Help: "classify texts with RL from the start, with a classifier or a language model: the built-in sentences by sentiment, or your own data",
		Recipe: recipe, ModelRecipe: modelRecipe, Options: func() any { return &options{} }, Folder: "classification", Stamped: true, OneStep: true, AllowRandomHead: true,
		Demonstrations: true, Forms: true, BuiltIn: "built-in sentences",
	})
}

// options are the options of the task.
type options struct {
	envs.LabelledRows
	Labels   []string `option:"labels" needs:"dataset" help:"labels, in the order used by the classifier and the prompt; every label needs a row (default: all labels in the data, sorted)"`
	Template string   `option:"prompt_template" needs:"policy=generate|score" help:"prompt template with {text} and optionally {labels} (default: a question that names the labels)"`
	Match    match    `option:"label_match" default:"named" allowed:"named,exact" needs:"policy=generate" help:"how a generated label is found: named = the only label named in the first line that names one, such as The label is: positive.; exact = the first line is the label"`
}

// Check reports conflicting options.
func (o *options) Check() error {
	if err := o.LabelledRows.Check(); err != nil {
		return err
	}
	if err := checkLabels(o.Labels); err != nil {
		return &envs.OptionError{Option: "labels", Err: err}
	}
	if o.Template != "" && !strings.Contains(o.Template, textMark) {
		return envs.OptionErrorf("prompt_template", "%q has no {text} placeholder", o.Template)
	}
	return nil
}

// checkLabels refuses labels that an answer could not tell apart: answers ignore case and surrounding spaces.
func checkLabels(labels []string) error {
	if len(labels) == 1 {
		return fmt.Errorf("%q is the only label; at least 2 are needed", labels[0])
	}
	seen := map[string]string{}
	for _, label := range labels {
		key := normal(label)
		if key == "" {
			return fmt.Errorf("label %q is empty", label)
		}
		if strings.Contains(label, textMark) {
			return fmt.Errorf("label %q contains %s, the placeholder for the text", label, textMark)
		}
		if strings.ContainsAny(label, "\r\n") {
			return fmt.Errorf("label %q has more than one line", label)
		}
		if other, twice := seen[key]; twice {
			return fmt.Errorf("labels %q and %q differ only in case or spaces", other, label)
		}
		seen[key] = label
	}
	return nil
}

// normal is the form in which labels are compared.
func normal(label string) string { return strings.ToLower(strings.TrimSpace(label)) }

// Rows implements envs.RowSource.
func (o *options) Rows(ctx context.Context, s envs.Setup) ([]dataset.Row, error) {
	if o.Dataset == "" {
		return o.Balanced(Builtin())
	}
	rows, err := o.LabelledRows.Rows(ctx, s)
	if err != nil {
		return nil, err
	}
	found, err := dataset.Labels(rows)
	if err != nil {
		return nil, err
	}
	if err := checkLabels(found); err != nil {
		return nil, fmt.Errorf("%s: labels: %w", o.Dataset, err)
	}
	if len(o.Labels) == 0 {
		return rows, nil
	}
	if _, err := dataset.LabelIndex(rows, o.Labels); err != nil {
		return nil, &envs.OptionError{Option: "labels", Err: err}
	}
	for _, label := range o.Labels {
		if !slices.Contains(found, label) {
			return nil, envs.OptionErrorf("labels", "label %q has no row in %s", label, o.Dataset)
		}
	}
	return rows, nil
}

// LabelsOf implements envs.RowSource: the given labels in their order, else sorted.
func (o *options) LabelsOf(rows []dataset.Row) ([]string, error) {
	if len(o.Labels) > 0 {
		return o.Labels, nil
	}
	return o.LabelledRows.LabelsOf(rows)
}

// Prompt implements envs.Prompting.
func (o *options) Prompt(labels []string, asText bool) envs.Observation {
	return shown(o.Template, labels, textMark, asText)
}

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	rows, err := o.Rows(context.Background(), s)
	if err != nil {
		return nil, err
	}
	labels, err := o.LabelsOf(rows)
	if err != nil {
		return nil, err
	}
	t := &task{labels: labels, template: o.Template, match: o.Match, text: s.Text, seed: s.Seed}
	var val, test []dataset.Row
	t.train, val, test = dataset.Split(rows, s.Seed)
	t.held = append(val, test...)
	if len(t.train) == 0 || len(t.held) == 0 {
		return nil, fmt.Errorf("%d training rows and %d held-out rows; both need at least one", len(t.train), len(t.held))
	}
	return t, nil
}
