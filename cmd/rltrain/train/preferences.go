package train

import (
	"cmp"
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
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// prefer trains a language model on the preferences of a data set.
func (t *trainer) prefer(ctx context.Context) error {
	c := t.config
	needs := c.Learning.Needs()
	p, err := t.startingModel(ctx, c.Pretrained(), rlStage)
	if err != nil {
		return err
	}
	defer p.Close()
	mismatch, formats := 0, []chat.Format{chat.Preference}
	if needs.Single {
		mismatch, formats = p.LimitLength(c.Pairs.MaxLength), []chat.Format{chat.Unpaired, chat.Preference}
	}
	rows, held, err := t.preferences(ctx, c.Pairs.PreferenceData, formats, func(examples iter.Seq2[chat.Example, error], skipBad bool) (policy.Preferences, error) {
		return p.EncodePreferences(examples, policy.EncodeOptions{MaxLength: c.Pairs.MaxLength, SkipBad: skipBad}, needs.Single)
	})
	if err != nil {
		return err
	}
	if needs.Single {
		if err := bothSides(rows.Units); err != nil {
			return c.Errorf("dataset", "%s: %v", t.dataName(), err)
		}
	}
	loss := strings.Trim(c.Text("dpo_loss"), "[]")
	source := epochs.NewPreferences(rows.Units, c.Pairs.BatchSize, mismatch, c.General.Seed)
	w := &work{
		stage: rlStage, what: "preferences, " + c.RL.Algorithm + " loss " + loss, from: p.BaseModel,
		source: source, algorithm: c.Learning, settings: t.reinforced(updates(c.Pairs.Epochs, c.Pairs.MaxSteps, source.PerEpoch()), tokenMicroTokens, "loss"),
		label: c.RL.Algorithm, unit: "update",
	}
	defer w.close()
	if _, err := t.trained(ctx, w, p, c.Pretrained()); err != nil {
		return err
	}
	notePreferences(w, rows, held, p.LimitLength(c.Pairs.MaxLength))
	noteEnds(w, p)
	w.settings.Checkpointing, w.settings.ReferenceSync = c.Tokens.Checkpointing, c.Pairs.ReferenceSync
	w.settings.Evaluate = evaluate.Preferences(w.policy, c.Learning, held.Units, cmp.Or(c.Pairs.EvalEvery, source.PerEpoch()))
	switch {
	case needs.Reference && c.Pairs.Precompute:
		w.settings.Precompute = slices.Concat(slices.Concat(rows.Units...), slices.Concat(held.Units...))
	case needs.Reference:
		w.settings.Precompute = slices.Concat(held.Units...)
	case c.Pairs.Precompute:
		return c.Errorf("precompute_ref", "loss %s has no reference", loss)
	}
	w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
		return t.finishPreferences(ctx, stage, p, result)
	}
	_, err = t.learn(ctx, w)
	return err
}

func (t *trainer) finishPreferences(ctx context.Context, stage *run.Stage, p *policy.CausalLM, result train.Result) error {
	before, best, err := decode[evaluate.PreferenceScores](result)
	if err != nil {
		return err
	}
	line, results := "Training complete after "+report.Plural(result.Steps, "update"), report.Table{}
	if best != nil {
		if err := save(stage, "eval_results.json", map[string]any{"before": before, "best": best, "best_step": result.BestStep}); err != nil {
			return err
		}
		results = preferenceTable(before, best, result.BestStep)
		line += "\n\n" + results.String()
	}
	if err := t.tryRecords(ctx, stage, chat.Unpaired, chat.Preference); err != nil {
		return err
	}
	return t.languageModel(stage, p, "preferences", line, results)
}

// preferenceTable has a row for the evaluation before training and one for the best.
func preferenceTable(before, best *evaluate.PreferenceScores, step int) report.Table {
	t := report.Table{Headers: []string{"held-out preferences", "n", "loss", "accuracy % [95 %]", "reward margin", "log-prob chosen", "rejected"}}
	for _, row := range []struct {
		name string
		of   *evaluate.PreferenceScores
	}{{"before", before}, {fmt.Sprintf("best, step %d", step), best}} {
		v := row.of
		t.Rows = append(t.Rows, []string{row.name, report.Count(int64(v.N)), fmt.Sprintf("%.4f", v.Loss),
			fmt.Sprintf("%.1f [%.1f, %.1f]", 100*v.Accuracy.Value, 100*v.Accuracy.Interval[0], 100*v.Accuracy.Interval[1]),
			fmt.Sprintf("%.4f", v.Margin.Value), fmt.Sprintf("%.2f", v.Chosen.Value), fmt.Sprintf("%.2f", v.Rejected.Value)})
	}
	return t
}

// decode reads what the first and the best evaluation found; nil if there was none.
func decode[T any](result train.Result) (before, best *T, err error) {
	for _, one := range []struct {
		from json.RawMessage
		into **T
	}{{result.Before, &before}, {result.Best, &best}} {
		if one.from != nil && err == nil {
			err = json.Unmarshal(one.from, one.into)
		}
	}
	return before, best, err
}

// bothSides refuses single answers of one kind: the loss has nothing to tell them from.
func bothSides(units [][]*rl.Sample) error {
	good := 0
	for _, unit := range units {
		good += int(unit[0].Truth)
	}
	if good == 0 || good == len(units) {
		return fmt.Errorf("%d of %d responses are good; the loss needs good and bad ones", good, len(units))
	}
	return nil
}

// preferences reads the data set's training and validation rows. Without a validation split a fraction of the training
// rows is kept for it.
func (t *trainer) preferences(ctx context.Context, o config.PreferenceData, formats []chat.Format, encode func(rows iter.Seq2[chat.Example, error], skipBad bool) (policy.Preferences, error)) (rows, held policy.Preferences, err error) {
	c := t.config
	records, err := c.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return rows, held, c.Blame(err)
	}
	if rows, err = encode(chat.Examples(records.Train, formats...), records.SkipBad); err == nil && records.Validation != nil {
		held, err = encode(chat.Examples(records.Validation, formats...), records.SkipBad)
	}
	if err != nil {
		return rows, held, t.suggestTask(ctx, c.Errorf("dataset", "%v", err))
	}
	if len(held.Units) == 0 {
		rows.Units, held.Units = keepForValidation(rows.Units, o.ValidationShare, c.General.Seed)
	}
	return rows, held, t.someRows(len(rows.Units))
}

// notePreferences says which rows are not trained on as they are.
func notePreferences(w *work, rows, held policy.Preferences, maxLength int) {
	w.splits = []report.Split{{Name: dataset.Train, Rows: len(rows.Units)}, {Name: "validation", Rows: len(held.Units)}}
	for _, unit := range rows.Units {
		w.longest = max(w.longest, rl.Tokens(unit)) // both responses count as one sample
	}
	first := cmp.Or(rows.First, held.First)
	noteBad(w, &rows.Bad, &held.Bad)
	noteContradictions(w, rows.Units)
	w.count(rows.Cut+held.Cut, "row", fmt.Sprintf("with a response cut at --max-length %d", maxLength))
	w.count(rows.Dropped+held.Dropped, "row", fmt.Sprintf("skipped: longer than --max-length %d; the first is %s", maxLength, first))
	w.count(rows.Equal+held.Equal, "row", "skipped: both responses are the same; the first is "+first)
	w.count(rows.Null+held.Null, "row", "skipped: null instead of a text")
	w.count(rows.Shortened+held.Shortened, "row", "without the thought that the chat template opens: its completion does not begin with one")
	w.count(rows.Untold+held.Untold, "row", "with tools that the chat template does not read, so the model is not told of them; pass --chat-template FILE to change that")
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
	made := adapter(o.Adapter, base, c.General.Seed)
	made.MaxLength, made.Pooling, made.DType, made.Template = o.MaxLength, unlessAuto(o.Pooling), o.WeightType(), t.template
	m, err := policy.NewRewardModel(made)
	if err != nil {
		return c.Errorf("model", "%v", err)
	}
	defer m.Close()
	rows, held, err := t.preferences(ctx, o.PreferenceData, []chat.Format{chat.Preference, chat.Ranking}, m.Units)
	if err != nil {
		return err
	}
	source := epochs.NewPreferences(rows.Units, o.BatchSize, 0, c.General.Seed)
	w := &work{
		stage: rewardStage, what: "reward model of preferences", from: base.Name, policy: m,
		source: source, algorithm: c.Learning, label: "reward_model", unit: "update",
		settings: t.settings(updates(o.Epochs, o.MaxSteps, source.PerEpoch()), o.Optimisation, train.Stopping{}, tokenMicroTokens, "accuracy"),
	}
	notePreferences(w, rows, held, m.MaxLength)
	w.settings.HeadRate, w.settings.Checkpointing = o.HeadLearningRate, o.Checkpointing
	w.settings.Evaluate = evaluate.Rewards(m, held.Units, cmp.Or(o.EvalEvery, source.PerEpoch()))
	w.finish = func(_ context.Context, stage *run.Stage, result train.Result) error {
		before, best, err := decode[evaluate.RewardScores](result)
		if err != nil {
			return err
		}
		line := "Training complete after " + report.Plural(result.Steps, "update")
		if best != nil {
			rule := evaluate.RuleOfLength(rows.Units, *best)
			if err := save(stage, "eval_results.json", map[string]any{"before": before, "best": best, "best_step": result.BestStep, "length_rule": rule}); err != nil {
				return err
			}
			line += fmt.Sprintf("\nHeld-out pairs, best after step %d: %s\nBaseline by length: %s", result.BestStep, best, rule)
		}
		if err := stage.Printf("%s", line); err != nil {
			return err
		}
		return t.console.Print("Saved in " + stage.Home() + ". Use it as a reward: --reward model:" + shared.ShellWord(stage.Home()))
	}
	_, err = t.learn(ctx, w)
	return err
}
