package equiv

import (
	"regexp"
	"strconv"
	"strings"
)

// clockTime matches 3:30 PM, 3 p.m., 15:30, 15:30:20, 12 noon, 3:30 in the afternoon.
var clockTime = regexp.MustCompile(`^(?:at )?(\d{1,2})(?: ?: ?([0-5]\d))?(?: ?: ?([0-5]\d))? ?(a\.? ?m\.?|p\.? ?m\.?|noon|midnight|in the morning|in the afternoon|in the evening)?$`)

const (
	halfDay = 12 * 3600
	maxTime = 60 // bytes of a time of day
)

// clock parses a time of day to seconds, in 24 hours if no word says which half of the day it means.
func clock(s string) (seconds int, word, ok bool) {
	s = strings.ReplaceAll(normalText(s), `\!`, "")
	switch s {
	case "noon", "midday":
		return halfDay, true, true
	case "midnight":
		return 0, true, true
	}
	m := clockTime.FindStringSubmatch(s)
	if m == nil || m[2] == "" && m[4] == "" {
		return 0, false, false
	}
	hour, _ := strconv.Atoi(m[1])
	minute, _ := strconv.Atoi("0" + m[2])
	second, _ := strconv.Atoi("0" + m[3])
	seconds = hour*3600 + minute*60 + second
	half := strings.TrimPrefix(m[4], "in the ")
	switch {
	case half == "":
		return seconds, false, hour < 24
	case hour < 1 || hour > 12, (half == "noon" || half == "midnight") && seconds != halfDay:
		return 0, false, false
	}
	seconds %= halfDay
	if half[0] == 'p' || half == "noon" || half == "afternoon" || half == "evening" {
		seconds += halfDay
	}
	return seconds, true, true
}

// times compares times of day if at least one side says which half of the day it means. The other side is then a 24-hour
// time or, from 1:00 to 11:59, in either half.
func times(gold, answer string) (equal, ok bool) {
	if len(gold) > maxTime || len(answer) > maxTime || !strings.ContainsAny(gold+answer, "mMnN") {
		return false, false
	}
	x, wordX, ok := clock(gold)
	if !ok {
		return false, false
	}
	y, wordY, ok := clock(answer)
	switch {
	case !ok || !wordX && !wordY:
		return false, false
	case wordX && wordY:
		return x == y, true
	case wordY:
		x, y = y, x
	}
	return x == y || 3600 <= y && y+halfDay == x, true
}
