package app

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
)

// preferenceFlags are the flags of eval for preference tasks.
func preferenceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "reference", Usage: "preferences: reference policy", DefaultText: "the adapter's base model"},
		&cli.StringFlag{Name: "loss-type", Value: "sigmoid", Usage: "preferences: sigmoid, ipo, hinge, robust, apo_zero, apo_down, cpo, simpo, orpo, sft or kto"},
		&cli.Float64Flag{Name: "beta", Value: 0.1, Usage: "preferences: beta of the loss"},
		&cli.Float64Flag{Name: "label-smoothing", Usage: "preferences: label smoothing, in [0, 0.5)"},
		&cli.Float64Flag{Name: "simpo-gamma", Value: 0.5, Usage: "preferences: target margin of simpo"},
		&cli.Float64Flag{Name: "cpo-alpha", Value: 1, Usage: "preferences: weight of the NLL loss of cpo"},
		&cli.IntFlag{Name: "max-length", Value: 1024, Usage: "chat and preferences: maximum tokens of a text, or of prompt and response"},
	}
}

// preferenceTasks lists the preference tasks.
func preferenceTasks() []string {
	return tasksWhere(func(d envs.Definition) bool { return d.Preferences })
}

// preferenceResults is the content of eval's --output for a policy.
type preferenceResults struct {
	Model     string  `json:"model"`
	Reference string  `json:"reference,omitempty"`
	Dataset   string  `json:"dataset"`
	Loss      string  `json:"loss_type"`
	Beta      float64 `json:"beta"`
	evaluate.PreferenceScores
	Cut     int `json:"cut"`     // rows with truncated responses
	Dropped int `json:"dropped"` // rows that are too long
	Equal   int `json:"equal"`   // rows with equal responses
	Null    int `json:"null"`    // rows with null instead of a text
}

// String returns the text that eval prints.
func (r preferenceResults) String() string {
	return fmt.Sprintf("%s on %s, loss_type=%s beta=%g: %s%s\n", r.Model, r.Dataset, r.Loss, r.Beta, r.PreferenceScores, skippedRows("--max-length", r.Cut, r.Dropped, r.Equal, r.Null)) + rl.FewRows(r.N, "pairs")
}

// rewardResults is the content of eval's --output for a reward model.
type rewardResults struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	evaluate.RewardScores
	Dropped int `json:"dropped"`
	Equal   int `json:"equal"`
	Null    int `json:"null"`
}

// String returns the text that eval prints.
func (r rewardResults) String() string {
	return fmt.Sprintf("%s on %s: %s; chosen response is the longer one in %.1f %%%s\n", r.Model, r.Dataset, r.RewardScores, 100*r.Longer.Value, skippedRows("the model reads", 0, r.Dropped, r.Equal, r.Null)) + rl.FewRows(r.N, "pairs")
}

// skippedRows says which rows are not evaluated as they are; limit names the most tokens.
func skippedRows(limit string, cut, dropped, equal, null int) string {
	text := ""
	for _, one := range []struct {
		n    int
		what string
	}{
		{cut, "truncated responses of %d rows"}, {dropped, "skipped %d rows longer than " + limit},
		{equal, "skipped %d rows with equal responses"}, {null, "skipped %d rows with null instead of a text"},
	} {
		if one.n > 0 {
			text += "\n" + fmt.Sprintf(one.what, one.n)
		}
	}
	return text
}

// evalPreferences measures a policy or a reward model on preference pairs.
func evalPreferences(c *cli.Context) error {
	model, data := c.String("model"), c.String("dataset")
	if err := onlyFlags(c, "to task "+c.String("task"), []string{"task", "dataset", "max-samples", "output", "output-rows"}, languageModelFlags(), preferenceFlags()); err != nil {
		return err
	}
	if model == "" || data == "" {
		return shared.UsageErrorf("eval --task %s needs --model DIR and --dataset FILE", c.String("task"))
	}
	a := &algo.DPO{
		Losses: []string{c.String("loss-type")}, Beta: c.Float64("beta"), Smoothing: c.Float64("label-smoothing"),
		SimPOGamma: c.Float64("simpo-gamma"), CPOAlpha: c.Float64("cpo-alpha"), DesirableWeight: 1, UndesirableWeight: 1,
	}
	switch known := a.Known(); {
	case !slices.Contains(known, a.Losses[0]):
		return shared.UsageErrorf("--loss-type: %q is not one of %s", a.Losses[0], strings.Join(known, ", "))
	case !(a.Beta > 0 && a.Beta <= 1e6):
		return shared.UsageErrorf("--beta: %v is out of range; it must be above 0", a.Beta)
	case !(a.Smoothing >= 0 && a.Smoothing < 0.5):
		return shared.UsageErrorf("--label-smoothing: %v is out of range; it must be 0 to below 0.5", a.Smoothing)
	}
	if err := a.Check(1); err != nil {
		return shared.UsageErrorf("%v", err)
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		if policy.IsRewardFolder(model) {
			return evalReward(ctx, c, model, data)
		}
		return evalPolicy(ctx, c, a, preferenceResults{Model: model, Reference: c.String("reference"), Dataset: data, Loss: a.Losses[0], Beta: a.Beta})
	})
}

// preferenceRows returns the examples of the validation rows of --dataset, or all rows if it has no splits.
func preferenceRows(ctx context.Context, c *cli.Context, name string, formats ...chat.Format) (iter.Seq2[chat.Example, error], error) {
	client, done := shared.HubOf(c)
	defer done()
	parts, err := shared.FindDataset(ctx, client, name, "")
	if err != nil {
		return nil, fmt.Errorf("--dataset: %w", err)
	}
	divided, err := dataReader(c).Divide(parts)
	if err != nil {
		return nil, fmt.Errorf("--dataset: %w", err)
	}
	rows := divided.Train
	if divided.Given {
		rows = divided.Validation
	}
	return firstOf(chat.Examples(rows, formats...), c.Int("max-samples")), nil
}

// firstOf yields the first n examples; all if n is 0.
func firstOf(examples iter.Seq2[chat.Example, error], n int) iter.Seq2[chat.Example, error] {
	if n == 0 {
		return examples
	}
	return func(yield func(chat.Example, error) bool) {
		left := n
		for e, err := range examples {
			if !yield(e, err) || err != nil {
				return
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

func evalReward(ctx context.Context, c *cli.Context, model, data string) (r rewardResults, err error) {
	for _, name := range append(flagNames(preferenceFlags()), "adapter", "dtype", "bf16", "quantize", "load-in-4bit", "load-in-8bit") {
		if c.IsSet(name) {
			return r, shared.UsageErrorf("--%s: does not apply; %s is a reward model", name, model)
		}
	}
	client, done := shared.HubOf(c)
	defer done()
	m, err := policy.LoadRewardModel(ctx, client, model)
	if err != nil {
		return r, err
	}
	defer m.Close()
	rows, err := preferenceRows(ctx, c, data, chat.Preference, chat.Ranking)
	if err != nil {
		return r, err
	}
	found, err := m.Units(rows, false)
	if err != nil {
		return r, err
	}
	r = rewardResults{Model: model, Dataset: data, Dropped: found.Dropped, Equal: found.Equal, Null: found.Null}
	if r.RewardScores, err = evaluate.ScoreRewards(ctx, m, found.Units); err != nil || c.String("output-rows") == "" {
		return r, err
	}
	all, err := rewardRows(m, found, r.Units)
	if err != nil {
		return r, err
	}
	return r, saveRows(c.String("output-rows"), all)
}

func evalPolicy(ctx context.Context, c *cli.Context, a *algo.DPO, r preferenceResults) (preferenceResults, error) {
	p, err := loadLanguageModel(c, r.Model, c.String("adapter"))
	if err != nil {
		return r, fmt.Errorf("--model: %w", err)
	}
	defer p.Close()
	refers := a.Needs().Reference
	switch {
	case !refers && r.Reference != "":
		return r, shared.UsageErrorf("--reference: loss %s uses no reference policy", r.Loss)
	case refers && r.Reference == "" && !p.Trainable():
		return r, shared.UsageErrorf("--model: %s is not an adapter; pass --reference DIR, which loss %s needs", r.Model, r.Loss)
	}
	formats := []chat.Format{chat.Preference}
	if a.Unpaired() {
		formats = append(formats, chat.Unpaired)
	}
	rows, err := preferenceRows(ctx, c, r.Dataset, formats...)
	if err != nil {
		return r, err
	}
	found, err := p.EncodePreferences(rows, policy.EncodeOptions{MaxLength: c.Int("max-length")}, a.Unpaired())
	if err != nil {
		return r, err
	}
	r.Cut, r.Dropped, r.Equal, r.Null = found.Cut, found.Dropped, found.Equal, found.Null
	asked := slices.Concat(found.Units...)
	var aside []*rl.Sample
	if a.Unpaired() {
		aside = epochs.Mismatches(asked, p.LimitLength(c.Int("max-length")))
	}
	if refers {
		reference, base := policy.Policy(p), true
		if r.Reference != "" {
			other, err := loadLanguageModel(c, r.Reference, "")
			if err != nil {
				return r, fmt.Errorf("--reference: %w", err)
			}
			defer other.Close()
			if other.VocabSize() != p.VocabSize() {
				return r, shared.UsageErrorf("--reference: %s has %d tokens, %s has %d; choose a model with the same tokenizer", r.Reference, other.VocabSize(), r.Model, p.VocabSize())
			}
			reference, base = other, false
		}
		if err := evaluate.AskReference(reference, base, slices.Concat(asked, aside)); err != nil {
			return r, err
		}
	}
	if err := evaluate.PrepareKL(p, a, aside); err != nil {
		return r, err
	}
	if r.PreferenceScores, err = evaluate.ScorePreferences(ctx, p, a, found.Units); err != nil || c.String("output-rows") == "" {
		return r, err
	}
	all, err := policyRows(p, found, r.Units)
	if err != nil {
		return r, err
	}
	return r, saveRows(c.String("output-rows"), all)
}
