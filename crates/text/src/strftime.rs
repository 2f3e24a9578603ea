//! Dates for chat templates: `strftime_now`.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a time, in seconds since 1970 UTC, like C's `strftime` in the C locale; unknown directives stay as they are.
pub(crate) fn strftime(format: &str, unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day, year_day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let week_day = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut text = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('j') => text.push_str(&format!("{year_day:03}")),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('I') => text.push_str(&format!("{hour12:02}")),
            Some('p') => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(week_day),
            Some('a') => text.push_str(&week_day[..3]),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month from 1, day from 1 and day of the year from 1 of a day since 1970.
fn date(days: u64) -> (u64, u64, u64, u64) {
    // 400 years are 146097 days; within them, years are short enough to step through.
    let mut year = 1970 + days / 146_097 * 400;
    let mut day = days % 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let year_day = day + 1;
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1, year_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_dates() {
        assert_eq!(strftime("%a %d %b %Y %j %I:%M:%S %p %% %Q", 0), "Thu 01 Jan 1970 001 12:00:00 AM % %Q");
        assert_eq!(strftime("%F %T %A", 1_709_210_096), "2024-02-29 12:34:56 Thursday");
        assert_eq!(strftime("%F", 4_107_542_399), "2100-02-28");
        assert!(!strftime("%F", u64::MAX).is_empty());
    }
}
