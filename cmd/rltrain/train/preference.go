package train

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// prefer trains a policy on preferences of a data set.
func (t *trainer) prefer(ctx context.Context) error {
	c := t.config
	dpo := c.Learning.(*algo.DPO)
	p, err := t.startingModel(ctx, c.Pretrained(), rlStage)
	if err != nil {
		return err
	}
	defer p.Close()
	mismatch, formats := 0, []chat.Format{chat.Preference}
	if dpo.Unpaired() {
		if mismatch, formats = p.MaxLength(), []chat.Format{chat.Unpaired, chat.Preference}; c.Pairs.MaxLength > 0 {
			mismatch = min(mismatch, c.Pairs.MaxLength)
		}
	}
	rows, held, err := t.preferences(ctx, c.Pairs.PreferenceData, formats, func(examples iter.Seq2[chat.Example, error]) (policy.Preferences, error) {
		return p.EncodePreferences(examples, c.Pairs.MaxLength, dpo.Unpaired())
	})
	if err != nil {
		return err
	}
	if dpo.Unpaired() {
		if err := bothSides(rows.Units); err != nil {
			return c.Errorf("dataset", "%s: %v", t.dataName(), err)
		}
	}
	source := epochs.NewPreferences(rows.Units, c.Pairs.BatchSize, mismatch, c.General.Seed)
	t.trial.starts(source.Source)
	settings := t.learning(preferenceSteps(c.Pairs.PreferenceData, source.Source), tokenMicroTokens)
	settings.Checkpoint, settings.Summary = c.Tokens.GradientCheckpointing, "loss"
	settings.Evaluate = evaluate.Preferences(p, dpo, held.Units, source.PerEpoch())
	if dpo.Needs().Reference {
		settings.Precompute = slices.Concat(held.Units...)
		if c.Pairs.Precompute {
			settings.Precompute = slices.Concat(slices.Concat(rows.Units...), settings.Precompute)
		}
	} else if c.Pairs.Precompute {
		return c.Errorf("precompute_ref", "loss %s has no reference", strings.Join(dpo.Losses, ", "))
	}
	what := "preferences, loss " + strings.Join(dpo.Losses, ", ")
	_, err = t.stage(rlStage, func(stage *run.Stage) error {
		if err := t.beginPreferences(stage, p, what, p.BaseModel, rows, held); err != nil {
			return err
		}
		result, err := train.Run(ctx, p, source, dpo, settings, stage.Hooks(c.RL.Algorithm, "update"))
		if err != nil {
			return err
		}
		var before, best *evaluate.PreferenceScores
		if err := decode(result, &before, &best); err != nil {
			return err
		}
		line := "Training complete after " + report.Plural(result.Steps, "update")
		results := report.Table{}
		if best != nil {
			if err := save(stage, "eval_results.json", map[string]any{"before": before, "best": best, "best_step": result.BestStep}); err != nil {
				return err
			}
			line += fmt.Sprintf(". Held-out preferences before: %s; best, after step %d: %s", before, result.BestStep, best)
			results = report.Table{Headers: []string{"held-out preferences", "loss", "accuracy % [95 %]", "reward margin"}}
			for name, v := range map[string]*evaluate.PreferenceScores{"before": before, "best": best} {
				results.Rows = append(results.Rows, []string{name, fmt.Sprintf("%.4f", v.Loss),
					fmt.Sprintf("%.1f [%.1f, %.1f]", 100*v.Accuracy.Value, 100*v.Accuracy.Interval[0], 100*v.Accuracy.Interval[1]), fmt.Sprintf("%.4f", v.Margin.Value)})
			}
			slices.SortFunc(results.Rows, func(a, b []string) int { return strings.Compare(b[0], a[0]) })
		}
		if err := t.tryPreferences(ctx, stage); err != nil {
			return err
		}
		return t.endText(stage, p, line, results)
	})
	return err
}

// decode reads what the first and the best evaluation found.
func decode[T any](result train.Result, before, best **T) error {
	for _, one := range []struct {
		from json.RawMessage
		into **T
	}{{result.Before, before}, {result.Best, best}} {
		if one.from == nil {
			continue
		}
		if err := json.Unmarshal(one.from, one.into); err != nil {
			return err
		}
	}
	return nil
}

// bothSides refuses single answers of one kind: the loss has nothing to tell them from.
func bothSides(units [][]*rl.Sample) error {
	good := 0
	for _, unit := range units {
		good += int(unit[0].Truth)
	}
	if good == 0 || good == len(units) {
		return fmt.Errorf("%d of %d answers are good: loss kto needs good and bad ones", good, len(units))
	}
	return nil
}

// preferenceSteps is how many updates are made.
func preferenceSteps(o config.PreferenceData, source *epochs.Source) int {
	if o.MaxSteps > 0 {
		return o.MaxSteps
	}
	return o.Epochs * source.PerEpoch()
}

// preferences reads the data set's training and validation rows. Without a validation split a share of the training rows
// is kept for it.
func (t *trainer) preferences(ctx context.Context, o config.PreferenceData, formats []chat.Format, encode func(iter.Seq2[chat.Example, error]) (policy.Preferences, error)) (train, held policy.Preferences, err error) {
	c := t.config
	records, err := c.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return train, held, c.Blame(err)
	}
	read := func(rows iter.Seq2[dataset.Record, error]) (policy.Preferences, error) {
		return encode(chat.Examples(rows, formats...))
	}
	if train, err = read(records.Train); err != nil {
		return train, held, c.Errorf("dataset", "%v", err)
	}
	if records.Validation != nil {
		if held, err = read(records.Validation); err != nil {
			return train, held, c.Errorf("dataset", "%v", err)
		}
	}
	if len(held.Units) == 0 {
		train.Units, held.Units = keepForValidation(train.Units, o.ValidationShare, c.General.Seed)
	}
	if len(train.Units) == 0 {
		return train, held, fmt.Errorf("%s: no rows are left for training", t.dataName())
	}
	return train, held, nil
}

// beginPreferences prints what is about to happen, and what was left out.
func (t *trainer) beginPreferences(stage *run.Stage, p counted, what, model string, train, held policy.Preferences) error {
	if stage.Resumed() {
		return nil
	}
	if err := t.begin(stage, p, what, model, []report.Split{{Name: dataset.Train, Rows: len(train.Units)}, {Name: "validation", Rows: len(held.Units)}}); err != nil {
		return err
	}
	first := train.First
	if first == "" {
		first = held.First
	}
	for _, one := range []struct {
		n    int
		text string
	}{
		{train.Cut + held.Cut, "%d rows have an answer that was longer than max_length and was cut at its end"},
		{train.Dropped + held.Dropped, "%d rows were left out: they leave nothing of an answer, or do not fit, within max_length; the first row left out is " + first},
		{train.Equal + held.Equal, "%d rows were left out: their answers are the same; the first row left out is " + first},
		{train.Null + held.Null, "%d rows were left out: they have null instead of a text"},
	} {
		if one.n > 0 {
			if err := stage.Printf(one.text, one.n); err != nil {
				return err
			}
		}
	}
	if policy, ok := p.(*policy.CausalLM); ok {
		return stage.Printf("Texts end at %s", shared.EOSNames(policy))
	}
	return nil
}

// tryPreferences keeps a few prompts to try the policy with.
func (t *trainer) tryPreferences(ctx context.Context, stage *run.Stage) error {
	records, err := t.config.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return t.config.Blame(err)
	}
	var rows []prompt
	for e, err := range chat.Examples(records.Train, chat.Unpaired, chat.Preference) {
		if err != nil {
			continue // it was counted
		}
		if row := beginning(e); row.Prompt != "" || row.Messages != nil {
			rows = append(rows, row)
		}
		if len(rows) == tryPrompts {
			break
		}
	}
	return saveRows(stage, rows)
}

// rewardStage is how the folder of a reward model ends.
const rewardStage = "reward"

// rewardModel trains a reward model on preferences or rankings of a data set.
func (t *trainer) rewardModel(ctx context.Context) error {
	c, o := t.config, t.config.Rewarding
	base, err := t.baseModel(ctx)
	if err != nil {
		return err
	}
	rc := policy.Config{
		Dir: base.Dir, BaseModel: base.Name, Revision: base.Commit, MaxLength: o.MaxLength,
		R: o.R, Alpha: float64(o.Alpha), Targets: o.Targets, Seed: c.General.Seed,
	}
	if o.Pooling != "auto" {
		rc.Pooling = o.Pooling
	}
	if o.DType != "auto" {
		rc.DType = o.DType
	}
	m, err := policy.NewRewardModel(rc)
	if err != nil {
		return c.Errorf("model", "%v", err)
	}
	defer m.Close()
	rows, held, err := t.preferences(ctx, o.PreferenceData, []chat.Format{chat.Preference, chat.Ranking}, m.Units)
	if err != nil {
		return err
	}
	source := epochs.NewPreferences(rows.Units, o.BatchSize, 0, c.General.Seed)
	t.trial.starts(source.Source)
	settings := train.Config{
		Steps: preferenceSteps(o.PreferenceData, source.Source), Optimisation: o.Optimisation, HeadRate: o.HeadLearningRate,
		MicroTokens: t.microTokens(tokenMicroTokens), OOMRetry: c.General.OOMRetry, Checkpoint: o.GradientCheckpointing, Seed: c.General.Seed, Summary: "accuracy",
		Evaluate: evaluate.Rewards(m, held.Units, source.PerEpoch()),
	}
	_, err = t.stage(rewardStage, func(stage *run.Stage) error {
		if err := t.beginPreferences(stage, m, "reward model of preferences", base.Name, rows, held); err != nil {
			return err
		}
		result, err := train.Run(ctx, m, source, c.Learning, settings, stage.Hooks("reward_model", "update"))
		if err != nil {
			return err
		}
		var before, best *evaluate.RewardScores
		if err := decode(result, &before, &best); err != nil {
			return err
		}
		if err := m.Save(stage.Dir()); err != nil {
			return err
		}
		if err := drawCurves(stage); err != nil {
			return err
		}
		line := "Training complete after " + report.Plural(result.Steps, "update")
		if best != nil {
			rule := evaluate.RuleOfLength(rows.Units, *best)
			if err := save(stage, "eval_results.json", map[string]any{"before": before, "best": best, "best_step": result.BestStep, "length_rule": rule}); err != nil {
				return err
			}
			line += fmt.Sprintf(". Held-out pairs, best after step %d: %s. By length alone: %s", result.BestStep, best, rule)
		}
		if err := stage.Printf("%s", line); err != nil {
			return err
		}
		return t.console.Print("Saved in " + stage.Home() + ". Use it as a reward: --reward model:" + shellWord(stage.Home()))
	})
	return err
}
