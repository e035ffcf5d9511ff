package train

import (
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// templateSettings are what chat templates get besides the conversation. The day is that of --template-date, else the one on
// which the run began: a resumed run renders as before.
func (t *trainer) templateSettings() (s policy.TemplateSettings, err error) {
	o := t.config.Conversations()
	if o == nil {
		o = &config.Conversations{} // a classifier may be a language model that scores labels
	}
	if s.Args, err = o.Args(); err != nil {
		return s, err
	}
	if s.Now, err = o.Date(); err != nil || !s.Now.IsZero() {
		return s, err
	}
	s.Now = time.Now()
	if resume, _ := t.config.Resuming(); resume {
		for _, stage := range []string{supervisedStage, rlStage, rewardStage} {
			record, err := run.ReadRun(t.stageDir(stage))
			if began, wrong := time.Parse(config.DateLayout, record.TemplateDate); err == nil && wrong == nil {
				s.Now = began
				break
			}
		}
	}
	// Only the day counts, so that a resumed run sees the same time.
	return policy.TemplateSettings{Now: dayOf(s.Now), Args: s.Args}, nil
}

func dayOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}

// templateDate is the day that chat templates print, as run.json has it.
func (t *trainer) templateDate() string { return t.template.Now.Format(config.DateLayout) }
