fn main() {
    for (n, s) in tenure_proto::schema::schemas() {
        std::fs::write(format!("/tmp/{n}"), serde_json::to_string_pretty(&s).unwrap()).unwrap();
    }
}
