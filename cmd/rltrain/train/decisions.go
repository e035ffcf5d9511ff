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
	"github.com/rltrain/rltrain/rl/decisions"
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
	p.MaxLength = c.Labels.MaxLength
	return p, nil
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
