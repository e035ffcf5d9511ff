package report

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/outfile"
)

// page is the content of report.html, about one run or several.
type page struct {
	Title    string
	Stage    string
	Facts    []Setting
	Inexact  []string
	Alarms   []string
	Sections []Section
	Charts   []drawn
	Pictures []picture
	Moments  []moment
	Best     Table // best-rewarded completions of three steps
	Last     Table
	Differ   Table // settings that are not equal in all runs
	Config   string
	Watched  bool // reload when the run has written more
}

// drawn is a chart with its legend, or for a single point its value.
type drawn struct {
	Title, YLabel string
	SVG           template.HTML
	Values        []Setting
	Legend        []key
}

// key is an entry of a chart's legend.
type key struct {
	Class, Label string
}

type picture struct {
	Name string
	Data template.URL
}

// About is the part of run.json that a report shows.
type About struct {
	Title   string
	Stage   string // Supervised or Reinforced
	Facts   []Setting
	Inexact []string // why a resumed run may differ from an uninterrupted one
}

// WriteHTML writes dir/report.html, a self-contained page about the run in dir, and returns its path. The page shows:
//   - about and the warnings of logs/training_log.txt
//   - evaluations: logs/eval_results.json, logs/comparison.json and eval/logs/eval_results.json
//   - curves of logs/metrics.jsonl, also written to plots/curves.png and .svg
//   - completions of logs/completions.jsonl, pictures of plots/ and config.yaml
//
// It skips files that do not exist.
func WriteHTML(dir string, about About) (string, error) {
	text, err := HTML(dir, about, false)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "report.html")
	return path, outfile.Write(path, text, 0o644)
}

// HTML returns the page that WriteHTML writes. A watched page polls its server and reloads when the run has written more.
func HTML(dir string, about About, watched bool) ([]byte, error) {
	p := page{Title: about.Title, Stage: about.Stage, Facts: about.Facts, Inexact: about.Inexact, Watched: watched}
	for _, read := range []func(string, *page) error{readCurves, readScores, readPictures, readAnswers, readConfig} {
		if err := read(dir, &p); err != nil {
			return nil, fmt.Errorf("report of %s: %w", dir, err)
		}
	}
	return p.render()
}

//go:embed page.html
var pageText string

// pageTemplate is parsed on first use, so that --help stays fast.
var pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

// Colours returns the indices of the palette.
func (page) Colours() []int {
	numbers := make([]int, len(palette))
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

func (p page) render() ([]byte, error) {
	var b strings.Builder
	if err := pageTemplate().Execute(&b, p); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return []byte(b.String()), nil
}

func readCurves(dir string, p *page) error {
	rows, err := ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	last := map[string]string{}
	for _, row := range rows {
		for key, value := range row {
			if f, ok := number(value); ok {
				last[key] = fmt.Sprintf("%.6g", f)
			}
		}
	}
	p.Last.Headers = []string{"metric", "last value"}
	for key, value := range last {
		p.Last.Rows = append(p.Last.Rows, []string{key, value})
	}
	slices.SortFunc(p.Last.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })

	panels := Panels(p.Stage, rows)
	p.Charts = charts(panels)
	panels = Charts(panels)
	if len(panels) == 0 || p.Watched {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	return Curves(filepath.Join(dir, "plots", "curves.png"), panels)
}

// charts draws panels. A panel has a legend if it has several series, and numbers instead of a chart if no series has two points.
func charts(panels []Panel) []drawn {
	var all []drawn
	for _, p := range panels {
		d := drawn{Title: p.Title, YLabel: p.YLabel}
		if p.single() {
			d.Values = p.values()
		} else {
			d.SVG = chart(p)
		}
		if len(p.Series) > 1 && d.Values == nil {
			for i, s := range p.Series {
				d.Legend = append(d.Legend, key{fmt.Sprintf("s%d", i%len(palette)), s.Label})
			}
		}
		all = append(all, d)
	}
	return all
}

func readScores(dir string, p *page) (err error) {
	if p.Sections, err = sections(dir); err == nil {
		p.Alarms, err = alarms(dir)
	}
	return err
}

func readPictures(dir string, p *page) error {
	paths, err := filepath.Glob(filepath.Join(globQuote(dir), "plots", "*.png"))
	if err != nil {
		return err
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return filepath.Base(path) == "curves.png" }) // shown as charts
	evaluated, err := filepath.Glob(filepath.Join(globQuote(dir), EvalFolder, "plots", "*.png"))
	if err != nil {
		return err
	}
	ofRun := len(paths)
	paths = append(paths, evaluated...)
	for i, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".png"), "_", " ")
		if i >= ofRun {
			name += " (rltrain eval)"
		}
		p.Pictures = append(p.Pictures, picture{
			Name: name,
			Data: template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(data)),
		})
	}
	return nil
}

// globQuote escapes the glob characters of a path.
func globQuote(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func readConfig(dir string, p *page) error {
	data, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p.Config = string(data)
	return err
}
