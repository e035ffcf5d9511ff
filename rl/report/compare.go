package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Compared is one of several runs to compare.
type Compared struct {
	Dir   string
	Name  string // short and unique among the runs
	About About
}

// CompareHTML returns a page about several runs: settings that differ, evaluations, and overlaid curves.
func CompareHTML(runs []Compared, watched bool) ([]byte, error) {
	p := page{Title: fmt.Sprintf("Comparison of %d runs", len(runs)), Watched: watched}
	var panels []Panel
	settings := make([]map[string]string, len(runs))
	for i, run := range runs {
		p.Facts = append(p.Facts, Setting{Name: run.Name, Value: run.About.Title + ", " + run.About.Facts[0].Value + ", in " + run.Dir})
		rows, err := ReadMetrics(filepath.Join(run.Dir, "logs", "metrics.jsonl"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("report of %s: %w", run.Dir, err)
		}
		for _, panel := range Panels(run.About.Stage, rows) {
			panels = overlay(panels, panel, run.Name)
		}
		found, err := sections(run.Dir)
		if err != nil {
			return nil, fmt.Errorf("report of %s: %w", run.Dir, err)
		}
		for _, s := range found {
			if s.Title == evaluationTitle || s.Title == changeTitle {
				s.Title = run.Name + ": " + strings.ToLower(s.Title[:1]) + s.Title[1:]
				p.Sections = append(p.Sections, s)
			}
		}
		if settings[i], err = readSettings(run.Dir); err != nil {
			return nil, fmt.Errorf("report of %s: %w", run.Dir, err)
		}
	}
	// A panel with a single run compares nothing.
	p.Charts = charts(slices.DeleteFunc(panels, func(panel Panel) bool { return len(panel.Series) < 2 && len(runs) > 1 }))
	p.Differ = differing(runs, settings)
	return p.render()
}

// overlay adds the first series of a run's panel to the panel with the same title.
func overlay(panels []Panel, panel Panel, run string) []Panel {
	s := panel.Series[0]
	s.Label = run
	s.Low, s.High = nil, nil
	for i := range panels {
		if panels[i].Title == panel.Title {
			panels[i].Series = append(panels[i].Series, s)
			return panels
		}
	}
	label := panel.YLabel
	if len(panel.Series) > 1 {
		label = panel.Series[0].Label
	}
	return append(panels, Panel{panel.Title, panel.XLabel, label, []Series{s}})
}

// DifferingSettings is a table of the settings of two runs that are not equal; without rows if one folder is no run's.
func DifferingSettings(a, b string) (Table, error) {
	runs := []Compared{{Name: "A"}, {Name: "B"}}
	settings := make([]map[string]string, 2)
	for i, dir := range []string{a, b} {
		var err error
		if settings[i], err = readSettings(dir); err != nil || settings[i] == nil {
			return Table{}, err
		}
	}
	return differing(runs, settings), nil
}

// readSettings reads the lines of config.yaml by key.
func readSettings(dir string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	settings := map[string]string{}
	for _, s := range Settings(data) {
		settings[s.Name] = s.Value
	}
	return settings, err
}

// differing has a row for each setting that is not equal in all runs.
func differing(runs []Compared, settings []map[string]string) Table {
	t := Table{Headers: []string{"setting"}}
	var keys []string
	for i, run := range runs {
		t.Headers = append(t.Headers, run.Name)
		for key := range settings[i] {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		row := []string{key}
		for i := range runs {
			row = append(row, settings[i][key])
		}
		if slices.ContainsFunc(row[1:], func(v string) bool { return v != row[1] }) {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
