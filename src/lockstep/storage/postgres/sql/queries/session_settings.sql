-- Sets settings ($1: names, $2: values) for the rest of the session.
select set_config(t.name, t.value, false) from unnest($1::text[], $2::text[]) t (name, value)
