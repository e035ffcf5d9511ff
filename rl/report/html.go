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

// page is what report.html shows of one run, or of several beside each other.
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
	Last     Table
	Differ   Table // settings in which runs differ
	Config   string
	Watched  bool // the page looks whether there is more
}

// drawn is a chart with its title and what its colours mean.
type drawn struct {
	Title, YLabel string
	SVG           template.HTML
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

// About is what run.json says of a run.
type About struct {
	Title   string
	Stage   string // Supervised or Reinforced
	Facts   []Setting
	Inexact []string // why a resumed run may differ from one that never stopped
}

// WriteHTML writes dir/report.html, one page that needs no other file, about
// the run in dir: its About and its alarms, what was measured
// (logs/eval_results.json, logs/comparison.json, and what rltrain eval left in
// eval/), the curves of logs/metrics.jsonl (drawn anew into plots/, too),
// answers of logs/completions.jsonl, the other pictures of plots/, and
// config.yaml. What is not there yet is left out. It returns the path of the
// page.
func WriteHTML(dir string, about About) (string, error) {
	text, err := HTML(dir, about, false)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "report.html")
	return path, outfile.Write(path, text, 0o644)
}

// HTML is the page that WriteHTML writes. A watched one asks its server again and again whether there is more.
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

// pageTemplate is parsed at first use: a program that only prints its help must not pay for it.
var pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

// Colours are the numbers of the colours of series.
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
	if len(panels) == 0 || p.Watched {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	return Curves(filepath.Join(dir, "plots", "curves.png"), panels)
}

// charts draws panels, each with a legend where it has several series.
func charts(panels []Panel) []drawn {
	var all []drawn
	for _, p := range panels {
		d := drawn{Title: p.Title, YLabel: p.YLabel, SVG: chart(p)}
		if len(p.Series) > 1 {
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

func readAnswers(dir string, p *page) (err error) {
	p.Moments, err = moments(dir)
	return err
}

func readPictures(dir string, p *page) error {
	paths, err := filepath.Glob(filepath.Join(globQuote(dir), "plots", "*.png"))
	if err != nil {
		return err
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return filepath.Base(path) == "curves.png" }) // they are charts
	evaluated, err := filepath.Glob(filepath.Join(globQuote(dir), EvalFolder, "plots", "*.png"))
	if err != nil {
		return err
	}
	own := len(paths)
	paths = append(paths, evaluated...)
	for i, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".png"), "_", " ")
		if i >= own {
			name += ", by rltrain eval"
		}
		p.Pictures = append(p.Pictures, picture{
			Name: name,
			Data: template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(data)),
		})
	}
	return nil
}

// globQuote keeps the characters of a folder's name from being a pattern.
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
