package train

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// decisionRun trains a decision model.
type decisionRun struct {
	*trainer
	all                []envs.Decision
	imitated, rewarded []envs.Decision // by the stages
	val, test          []envs.Decision
	results            []decisionResult // of the stages on the test rows
}

// decisionResult is a finished stage on the test rows.
type decisionResult struct {
	name  string
	dir   string
	probs [][]float64
}

// decide reads the questions and divides them.
func (t *trainer) decide(ctx context.Context) (*decisionRun, error) {
	c := t.config
	r := &decisionRun{trainer: t}
	var err error
	if r.all, err = c.Settings.(envs.DecisionSource).Decisions(ctx, t.setup()); err != nil {
		return nil, c.Blame(err)
	}
	divided, err := divideDecisions(r.all, c.General.Seed)
	if err != nil {
		return nil, err
	}
	r.val, r.test = divided[dataset.Val], divided[dataset.Test]
	for _, name := range []string{dataset.Train, dataset.Val, dataset.Test} {
		part := divided[name]
		if len(part) == 0 {
			return nil, fmt.Errorf("%s: no %s rows; add rows, or name all three parts in a split column", t.dataName(), name)
		}
		if name != dataset.Train && len(decisions.Labelled(part)) == 0 {
			return nil, fmt.Errorf("%s: no %s row has an answer; only training rows may have rewards alone", t.dataName(), name)
		}
		types := map[string]int{}
		for _, d := range part {
			types[d.Question.Type]++
		}
		var counts []string
		for kind, n := range types {
			counts = append(counts, fmt.Sprintf("%d %s", n, kind))
		}
		slices.Sort(counts)
		t.tell(fmt.Sprintf("Data: %s: %s, %s (%s)", name, report.Plural(len(decisions.Rows(part)), "row"), report.Plural(len(part), "question"), strings.Join(counts, ", ")))
	}
	r.imitated, r.rewarded = divided[dataset.Train], divided[dataset.Train]
	if o := c.LabelRollouts; o != nil && c.Supervised != nil && o.Share > 0 {
		r.imitated, r.rewarded = setDecisionsApart(divided[dataset.Train], o.Share)
		t.tell(fmt.Sprintf("Split: %d questions for supervised training, %d others for RL", len(r.imitated), len(r.rewarded)))
	}
	if c.Supervised != nil {
		before := len(r.imitated)
		r.imitated = slices.DeleteFunc(slices.Clone(r.imitated), func(d envs.Decision) bool { return d.Target == nil })
		if n := before - len(r.imitated); n > 0 {
			t.tell(report.Plural(n, "question") + " without an answer skipped in the supervised stage: only the reward of one option is known")
		}
		if len(r.imitated) == 0 {
			return nil, fmt.Errorf("%s: no training row has an answer to imitate; use --mode rl_only", t.dataName())
		}
	}
	return r, nil
}

// divideDecisions are the questions by split: that of the data, or 70/15/15 by state.
func divideDecisions(all []envs.Decision, seed uint64) (map[string][]envs.Decision, error) {
	var rows []dataset.Row
	for i, row := range decisions.Rows(all) {
		d := all[row[0]]
		text, ok := d.State.(string)
		if !ok {
			var err error
			if text, err = jinja.JSON(d.State); err != nil {
				return nil, err
			}
		}
		rows = append(rows, dataset.Row{Text: text, Split: d.Split, Line: i})
	}
	parts := map[string][]envs.Decision{}
	divided := decisions.Rows(all)
	train, val, test := dataset.Split(rows, seed)
	for name, part := range map[string][]dataset.Row{dataset.Train: train, dataset.Val: val, dataset.Test: test} {
		for _, row := range part {
			for _, i := range divided[row.Line] {
				parts[name] = append(parts[name], all[i])
			}
		}
	}
	return parts, nil
}

// setDecisionsApart moves a fraction of the rows, evenly spaced, from rest to apart.
func setDecisionsApart(all []envs.Decision, fraction float64) (rest, apart []envs.Decision) {
	for n, row := range decisions.Rows(all) {
		into := &rest
		if int(float64(n+1)*fraction+1e-9) > int(float64(n)*fraction+1e-9) {
			into = &apart
		}
		for _, i := range row {
			*into = append(*into, all[i])
		}
	}
	return rest, apart
}

func (t *decisionRun) run(ctx context.Context) error {
	start := t.config.Pretrained()
	if t.config.Supervised != nil {
		if err := t.oneStage(ctx, supervisedStage, start, t.imitated, t.supervise); err != nil {
			return err
		}
		start = t.stageDir(supervisedStage)
	}
	if t.config.RL != nil {
		if err := t.oneStage(ctx, rlStage, start, t.rewarded, t.reinforce); err != nil {
			return err
		}
	}
	if t.trial != nil {
		return nil
	}
	return t.compare()
}

// asked are cases as a policy sees them.
type asked struct {
	cases   []envs.Decision
	samples []*rl.Sample
}

// oneStage trains a stage from the policy in start, or without one from a new policy.
func (t *decisionRun) oneStage(ctx context.Context, name, start string, cases []envs.Decision, build func(context.Context, *work, *policy.Decider, asked, asked) error) error {
	p, err := t.decider(ctx, start)
	if err != nil {
		return err
	}
	defer p.Close()
	var parts [3]asked
	cut := 0
	for i, part := range [][]envs.Decision{cases, t.val, t.test} {
		samples, short, err := p.Encode(part)
		if err != nil {
			return err
		}
		parts[i], cut = asked{part, samples}, cut+short
	}
	w := &work{stage: name, from: p.BaseModel(), policy: p, splits: []report.Split{
		{Name: "train", Rows: len(cases)}, {Name: "validation", Rows: len(t.val)}, {Name: "test", Rows: len(t.test)},
	}}
	for _, x := range parts[0].samples {
		w.longest = max(w.longest, len(x.Tokens))
	}
	w.count(cut, "question", "about a truncated state")
	defer w.close()
	if t.config.Supervised == nil && t.trial == nil {
		if err := t.measure(ctx, p, parts[2], "before RL", start); err != nil {
			return err
		}
	}
	if err := build(ctx, w, p, parts[0], parts[1]); err != nil {
		return err
	}
	finish := w.finish
	w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
		if err := finish(ctx, stage, result); err != nil {
			return err
		}
		return t.write(ctx, stage, p, parts[1], parts[2])
	}
	finished, err := t.learn(ctx, w)
	if err != nil || t.trial != nil {
		return err
	}
	dir := t.stageDir(name)
	if finished {
		earlier, err := policy.LoadDecider(ctx, t.hub, dir, unlessAuto(t.config.Labels.DType), true, t.template.Now)
		if err != nil {
			return err
		}
		defer earlier.Close()
		p = earlier
	}
	return t.measure(ctx, p, parts[2], name, dir)
}

// decider is the policy in start, or without one a new one on --model.
func (t *decisionRun) decider(ctx context.Context, start string) (*policy.Decider, error) {
	c := t.config
	if start != "" {
		p, err := policy.LoadDecider(ctx, t.hub, start, unlessAuto(c.Labels.DType), true, t.template.Now)
		if err != nil {
			return nil, c.Errorf("pretrained_model", "%v", err)
		}
		return p, nil
	}
	model, err := t.baseModel(ctx)
	if err != nil {
		return nil, err
	}
	made := adapter(c.NewLabel.LoRA.Adapter, model, c.General.Seed)
	made.Dropout, made.DType, made.Template = c.NewLabel.LoRA.Dropout, unlessAuto(c.Labels.DType), t.template
	kind, language := c.Settings.(envs.DecisionSource).PolicyKind(), policy.IsLanguageModel(model)
	if kind == "head" || kind == "auto" && !language {
		questions, err := policy.FixedQuestions(t.all)
		if err != nil {
			return nil, c.Errorf("policy", "%v", err)
		}
		made.Labels, made.Pooling, made.MaxLength = policy.HeadLabels(questions), unlessAuto(c.NewLabel.Pooling), c.Labels.MaxLength
		head, err := policy.NewClassifier(made)
		if err != nil {
			return nil, err
		}
		return policy.NewHeadDecider(head, questions), nil
	}
	if !language {
		return nil, c.Errorf("policy", "score needs a language model, and %s is none; use --policy head", model.Name)
	}
	lm, err := policy.NewCausalLM(made)
	if err != nil {
		return nil, err
	}
	p, err := policy.NewScoringDecider(lm)
	if err != nil {
		lm.Close()
		return nil, c.Errorf("model", "%v", err)
	}
	return p, nil
}

// supervise builds the supervised stage.
func (t *decisionRun) supervise(_ context.Context, w *work, p *policy.Decider, rows, val asked) error {
	c := t.config
	var units [][]*rl.Sample
	for _, row := range decisions.Rows(rows.cases) {
		var unit []*rl.Sample
		for _, i := range row {
			unit = append(unit, rows.samples[i])
		}
		units = append(units, unit)
	}
	source := epochs.NewPreferences(units, c.Supervised.BatchSize, 0, c.General.Seed)
	learning := &decisions.Supervised{LossOptions: c.DecisionSFT.LossOptions, Cases: rows.cases}
	w.what, w.source, w.algorithm, w.label, w.unit = "supervised training on answers with LoRA", source, learning, "supervised", "update"
	w.settings = t.settings(updates(c.Supervised.Epochs, c.Supervised.MaxSteps, source.PerEpoch()), c.Supervised.Optimisation, c.Supervised.Stopping, tokenMicroTokens, "loss")
	w.settings.HeadRate = c.DecisionSFT.HeadLearningRate
	w.settings.Evaluate = t.watch(p, val, c.DecisionSFT.Metric, source.PerEpoch(), nil)
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		return stage.Printf("Supervised training complete after %s (best: update %d by %s)", report.Plural(found.Steps, "update"), found.BestStep, c.DecisionSFT.Metric)
	}
	return nil
}

// reinforce builds the RL stage.
func (t *decisionRun) reinforce(_ context.Context, w *work, p *policy.Decider, rows, val asked) error {
	c, o := t.config, t.config.LabelRollouts
	if c.LabelReplay != nil {
		return c.Errorf("algorithm", "%s learns from a replay buffer, which decisions do not have", c.RL.Algorithm)
	}
	spec, key := o.RewardSpec()
	rewards, err := decisions.NewRewards(spec, rows.cases)
	if err != nil {
		return c.Errorf(key, "%v", err)
	}
	judged, err := decisions.NewRewards(spec, val.cases)
	if err != nil {
		return c.Errorf(key, "%v", err)
	}
	metric, err := decisionMetric(o.Metric, rewards.Names())
	if err != nil {
		return c.Errorf("rl_metric_for_best", "%v", err)
	}
	learning, way := c.Learning, c.RL.Algorithm
	chosen := c.Settings.(envs.DecisionSource).OnlyChosen()
	exact := !chosen || rewards.ReadsProbs() || decisions.Logged(rows.cases)
	if exact {
		way = "the exact gradient of the expected reward"
		if chosen {
			way = "an unbiased gradient of the expected reward, from whether a sampled answer was right"
		}
		learned := algo.New[decisions.Exact]()
		learned.Rewards, learned.Chosen = rewards, chosen
		learning = learned
	}
	w.what, w.algorithm, w.label, w.unit = "reinforcement learning with "+way, learning, c.RL.Algorithm, "rollout"
	w.settings = t.reinforced(o.Episodes, tokenMicroTokens, "reward")
	w.settings.Samples = o.Samples
	if learning.Needs().Ratio != algo.NoRatio {
		w.settings.MinibatchSize = o.BatchSize
	}
	w.settings.Evaluate = t.watch(p, val, metric, o.EvalEvery, judged)
	var source *decisions.Rollouts
	w.open = func(stage *run.Stage) error {
		source = decisions.NewRollouts(p, rows.cases, rows.samples, rewards, decisions.RolloutConfig{
			LabelOptions: t.trial.limitLabels(o.LabelOptions), Algorithm: c.RL.Algorithm, Steps: o.Episodes, Seed: c.General.Seed, Log: stage.Keepf,
		})
		w.source = source
		return nil
	}
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		return stage.Printf("RL complete. Highest reward of a rollout: %.4f (best by %s: rollout %d)", source.BestReward(), metric, found.BestStep)
	}
	return nil
}

// decisionMetric is the validation figure that picks the best weights.
func decisionMetric(metric string, rewards []string) (string, error) {
	if strings.HasPrefix(metric, "f1") {
		return "", fmt.Errorf("%s is of classifiers; choose auto, accuracy, brier or ece", metric)
	}
	if metric = bestMetric(metric, rewards); metric == evaluate.MetricReward && len(rewards) == 1 && rewards[0] == "brier" {
		metric = evaluate.MetricBrier
	}
	return metric, nil
}

// watch evaluates the policy on validation rows every so many steps.
func (t *decisionRun) watch(p *policy.Decider, val asked, metric string, every int, rewards *decisions.Rewards) *evaluate.Plan {
	of := decisions.Labelled(val.cases)
	return &evaluate.Plan{Rows: len(of), Every: every, First: rewards != nil, KeepBest: true, Run: func(ctx context.Context, _ int) (evaluate.Scores, error) {
		logProbs, err := p.LogProbs(context.WithoutCancel(ctx), val.samples)
		if err != nil {
			return evaluate.Scores{}, err
		}
		probs := make([][]float64, len(logProbs))
		for i, row := range logProbs {
			probs[i] = policy.Softmax(row, 1)
		}
		s := decisions.Evaluate(val.cases, probs).Scores
		row := report.Row{
			"eval_accuracy": s.Accuracy.Value, "eval_accuracy_low": s.Accuracy.Interval[0], "eval_accuracy_high": s.Accuracy.Interval[1],
			"eval_brier": s.Brier.Value, "eval_ece": s.ECE.Value, "eval_loss": s.Loss,
		}
		scores := evaluate.Scores{Name: metric, Row: row, Value: s}
		if s.Ranked != nil {
			row["eval_ranked"] = s.Ranked.Value
		}
		reward := 0.0
		if rewards != nil {
			for _, i := range of {
				small := make([]float32, len(probs[i]))
				for k, x := range probs[i] {
					small[k] = float32(x)
				}
				value, _ := rewards.Objective(i, val.cases[i].Target, small)
				reward += value / float64(len(of))
			}
			row["eval_reward"] = reward
		}
		switch metric {
		case evaluate.MetricAccuracy:
			scores.Score, scores.Error = s.Accuracy.Value, s.Accuracy.Interval.StandardError()
		case evaluate.MetricBrier:
			scores.Score, scores.Error = -s.Brier.Value, s.Brier.Interval.StandardError()
		case evaluate.MetricECE:
			scores.Score, scores.Error = -s.ECE.Value, s.ECE.Interval.StandardError()
		case evaluate.MetricReward:
			scores.Score = reward
		default:
			scores.Score = -s.Loss
		}
		scores.Line = func(int) string {
			line := "Validation: " + s.String()
			if rewards != nil {
				line += fmt.Sprintf(", reward=%.4f", reward)
			}
			return line
		}
		return scores, nil
	}}
}

// write fits the temperatures on the validation rows, and writes the settings and the results on the test rows.
func (t *decisionRun) write(ctx context.Context, stage *run.Stage, p *policy.Decider, val, test asked) error {
	logProbs, err := p.LogProbs(ctx, val.samples)
	if err != nil {
		return err
	}
	for _, line := range decisions.Calibrate(p, val.cases, logProbs) {
		if err := stage.Printf("%s", line); err != nil {
			return err
		}
	}
	if err := p.SaveSettings(stage.Dir()); err != nil {
		return err
	}
	if logProbs, err = p.LogProbs(ctx, test.samples); err != nil {
		return err
	}
	probs := p.Probs(test.cases, logProbs)
	e := decisions.Evaluate(test.cases, probs)
	if err := save(stage, "eval_results.json", e); err != nil {
		return err
	}
	truth, padded := decisions.Padded(test.cases, probs, decisions.Labelled(test.cases))
	plot, err := stage.File("plots", "reliability.png")
	if err != nil {
		return err
	}
	if err := report.Reliability(plot, report.Bins(rl.SurenessOf(truth, padded))); err != nil {
		return err
	}
	headers, rows := e.Table()
	_, err = report.WriteCard(stage.Dir(), report.Card{
		Name: filepath.Base(stage.Home()), Task: t.config.Task.Name, Stage: stage.Name(), BaseModel: p.BaseModel(), Adapter: true,
		Data:    fmt.Sprintf("%s: %d training, %d validation and %d test questions", t.dataName(), len(t.imitated), len(val.cases), len(test.cases)),
		Results: report.Table{Headers: headers, Rows: rows}, Settings: report.Settings(t.config.YAML()), Versions: cardVersions(),
	})
	return err
}

// measure adds how the policy does on the test rows.
func (t *decisionRun) measure(ctx context.Context, p *policy.Decider, test asked, name, dir string) error {
	logProbs, err := p.LogProbs(ctx, test.samples)
	if err != nil {
		return err
	}
	t.results = append(t.results, decisionResult{name, dir, p.Probs(test.cases, logProbs)})
	return nil
}

// compare prints the stages side by side on the test rows.
func (t *decisionRun) compare() error {
	var table [][]string
	var headers []string
	for _, r := range t.results {
		var rows [][]string
		headers, rows = decisions.Evaluate(t.test, r.probs).Table()
		for i, row := range rows {
			name := ""
			if i == 0 {
				name = r.name
			}
			table = append(table, append([]string{name}, row...))
		}
	}
	if err := t.console.Print("\nHeld-out test rows:\n" + report.RenderTable(append([]string{"stage"}, headers...), table)); err != nil {
		return err
	}
	last := t.results[len(t.results)-1]
	if len(t.results) == 2 {
		of := decisions.Labelled(t.test)
		truth, before := decisions.Padded(t.test, t.results[0].probs, of)
		_, after := decisions.Padded(t.test, last.probs, of)
		d := rl.Compare(len(before[0]), truth, before, after)
		if err := files.SaveJSON(filepath.Join(last.dir, "logs", "comparison.json"), d); err != nil {
			return err
		}
		if err := t.console.Print(fmt.Sprintf("Change by RL, 95 %% paired intervals: accuracy %+.1f points [%+.1f, %+.1f], ECE %+.4f [%+.4f, %+.4f], Brier %+.4f [%+.4f, %+.4f]",
			100*d.Accuracy.Difference, 100*d.Accuracy.Interval[0], 100*d.Accuracy.Interval[1],
			d.ECE.Difference, d.ECE.Interval[0], d.ECE.Interval[1], d.Brier.Difference, d.Brier.Interval[0], d.Brier.Interval[1])); err != nil {
			return err
		}
	}
	return t.console.Print("Saved in " + last.dir + ". Try: rltrain predict --model " + shared.ShellWord(last.dir) + " --input FILE")
}
